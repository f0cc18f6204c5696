"""Removes secrets from values."""

from __future__ import annotations

import re
from collections.abc import Collection

HIDDEN = "(hidden)"

_NAMES = re.compile(
    r"(^|_)(API_?KEYS?|KEY|KEYS|TOKEN|TOKENS|SECRET|SECRETS|PASSWORD|PASSWD|CREDENTIALS?|AUTH)($|_)", re.I
)
# Names of counts, files and switches, which are not secrets themselves.
_HARMLESS = re.compile(r"_(FILE|PATH|DIR|COUNT|MAX|NUM|LEN|LENGTH|KEYFILE|CERTFILE)$|(^|_)(NUM|MAX)_", re.I)
_IN_VALUES = (
    (re.compile(r"(?<=://)[^/@\s]+(?=@)"), HIDDEN),  # user and password in a URL
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s,;\"']+"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)([?&][^=&\s]*(?:key|token|secret|password|signature|sig)[^=&\s]*=)[^&\s]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[a-z])[-_][A-Za-z0-9_-]{8,}"), HIDDEN),
    (re.compile(r"\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{10,}(?:\.[\w-]+)*"), HIDDEN),
    # a key of a JSON object
    (re.compile(r"(?i)(\"[^\"]*(?:key|token|secret|password)\"\s*:\s*)\"[^\"]*\""), rf'\1"{HIDDEN}"'),
)


def without_secrets(name: str, value: str, secret_names: Collection[str] = ()) -> str:
    """The value of a variable, with secrets replaced.

    Args:
        secret_names: variables that are secret whatever their name.
    """
    if value and (name in secret_names or (_NAMES.search(name) and not _HARMLESS.search(name))):
        return HIDDEN
    for pattern, replacement in _IN_VALUES:
        value = pattern.sub(replacement, value)
    return value
