"""The admin port: what operators ask for. A file for each kind of thing, whose `ROUTES` the registry puts together."""
