"""Replaces what looks like a secret in a text: keys and tokens of a known form, and passwords.

A pattern knows forms, not meanings: a secret of no known form stays, unless its variable is named
in `run.secrets`.
"""

import re

MASK = b"<masked>"

# Each is known by how it begins, and by its length.
TOKENS = (
    rb"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",  # AWS access keys
    rb"\bgh[pousr]_[A-Za-z0-9]{30,}",  # GitHub
    rb"\bgithub_pat_[A-Za-z0-9_]{30,}",
    rb"\bglpat-[A-Za-z0-9_-]{16,}",  # GitLab
    rb"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    rb"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
    rb"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    rb"\bAIza[A-Za-z0-9_-]{35}",  # Google API keys
    rb"\bya29\.[A-Za-z0-9._-]{20,}",  # Google access tokens
    rb"\bdapi[0-9a-f]{32}\b",  # Databricks
    rb"\bpypi-[A-Za-z0-9_-]{30,}",
    rb"\bnpm_[A-Za-z0-9]{30,}",
    rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # signed web tokens
)
TOKEN = re.compile(b"|".join(TOKENS))
# A block that is cut off has no last line. The lines of a diff begin with a sign.
KEY_BLOCK = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|(?:\n[-+ ]?[A-Za-z0-9+/=:, -]*$)*)",
    re.DOTALL | re.MULTILINE,
)
# The value that a name is given: in quotes, or a word after `NAME=`, or a word with a digit in it.
NAMED = re.compile(
    rb"""(?ix)
    ( [\w.-]* (?: password | passwd | passphrase | secret (?: [_-]? (?:access[_-]?)? key )?
                | (?:api|access|private)[_-]?key | (?:auth|access|api|[a-z]+)_token | \b token )
      ["']? )
    (?: ( \s* [=:] \s* (["']) ) (?![<]) [^"'\n]{4,}? (?=\3)
      | ( = ) (?![=<]) [^\s"'<>(){}\[\],;]{6,} (?=[\s"',;]|$)
      | ( \s* [=:] \s* ) (?=\S*\d) [^\s"'<>(){}\[\],;=]{6,} (?=[\s"',;]|$) )
    """,
    re.MULTILINE,
)
BEARER = re.compile(rb"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/._~=-]{12,}")
IN_ADDRESS = re.compile(rb"(\w[\w+.-]*://[^\s/:@]*:)[^\s/@]+(@)")


def masked(text: bytes) -> bytes:
    """The text without what looks like a secret."""
    text = KEY_BLOCK.sub(MASK, text)
    text = TOKEN.sub(MASK, text)
    text = BEARER.sub(rb"\1" + MASK, text)
    text = IN_ADDRESS.sub(rb"\1" + MASK + rb"\2", text)
    return NAMED.sub(_without_value, text)


def _without_value(found: re.Match[bytes]) -> bytes:
    given: bytes = found[2] or found[4] or found[5]
    return bytes(found[1]) + given + MASK
