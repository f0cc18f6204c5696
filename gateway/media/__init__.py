"""Images, videos and audio that messages name by URL: where their bytes come from, and what may be read or fetched."""
