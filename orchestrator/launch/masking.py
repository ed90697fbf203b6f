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
    rb"\bxapp-[A-Za-z0-9-]{20,}",
    rb"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}",
    rb"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    rb"\bhv[sb]\.[A-Za-z0-9_-]{20,}",  # Vault
    rb"\bdop_v1_[A-Za-z0-9]{40,}",  # DigitalOcean
    rb"\bgl(?:sa|c)_[A-Za-z0-9_=]{20,}",  # Grafana
    rb"\bdckr_pat_[A-Za-z0-9_-]{16,}",  # Docker
    rb"\bAGE-SECRET-KEY-1[A-Z0-9]{8,}",
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
    rb"(?:.{0,16384}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    rb"|(?:\n[-+ ]?[A-Za-z0-9+/=:, -]*$)*)",
    re.DOTALL | re.MULTILINE,
)
# Names that tell of a secret. That of a token may be one of text.
SECRET = rb"""(?: password | passwd | passphrase | credential | secret
    | \b (?:[\w.-]{0,64}_)? (?:pwd|pass) \b
    | (?:api|access|private|account|encryption) [_-]? key )"""
TOKEN_NAME = rb"(?: (?:auth|access|api|session|refresh|[a-z]+_) [_-]? token | \b token )"
ANY_NAME = (
    rb"(?<![\w.-]) [\w.-]{0,64} (?: " + SECRET + rb" [\w-]* | " + TOKEN_NAME + rb""" ) ["']?"""
)
# The value that a name is given: in quotes, or a word after `NAME=`, or a word with a digit in it.
WORD = rb"""[^\s"'<>(){}\[\],;=]{6,}"""
GIVEN = re.compile(
    rb"(?ix) ( "
    + ANY_NAME
    + rb""" )
    (?: ( \s* [=:] \s* [bfru]? (["']) ) (?![<]) [^"'\n]{4,}? (?=\3)
      | ( = ) (?![=<]) [^\s"'<>(){}\[\],;]{6,} (?=[\s"',;]|$)
      | ( \s* [=:>] \s* ) (?=\S*\d) """
    + WORD
    + rb""" (?=[\s"'<,;]|$) )
    """,
    re.MULTILINE,
)
LOGIN_KEY = re.compile(rb"""(?i)(\bkey\s*=\s*["'])(?=[a-z/+-]*\d)[a-z0-9/+_=-]{16,}(?=["'])""")
# The word after an option or a name, as in a command line and in `.netrc`.
NEXT_WORD = re.compile(
    rb"(?ix) ( (?: password | passwd | passphrase | secret | --[\w-]*token ) [ ]+ ) (?=\S*\d) "
    + WORD
)
# What else is quoted in the line of such a name, and in the next where it goes on: no prose, and
# no names of variables.
TELLING = re.compile(rb"(?ix)" + SECRET)
QUOTED = re.compile(rb"""(?<=(["']))(?![A-Z0-9]+_[A-Z0-9_]+["'])[^\s"'<>]{6,4096}(?=\1)""")
GOES_ON = (b"(", b"[", b"{", b"=", b"\\", b":", b'"""', b"'''")
BEARER = re.compile(rb"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/._~=-]{12,}")
IN_ADDRESS = re.compile(rb"(\b\w[\w+.-]{0,30}://[^\s/:@]*:)[^\s/@]+(@)")
NAME_IN_ADDRESS = re.compile(rb"(\b\w[\w+.-]{0,30}://)(?=[^\s/:@]*\d)[^\s/:@]{16,}(@)")
SIGNATURE = re.compile(rb"(?i)([?&;](?:sig|signature|x-\w+-signature)=)[^\s&\"']{8,}")


def masked(text: bytes) -> bytes:
    """The text without what looks like a secret."""
    text = KEY_BLOCK.sub(MASK, text)
    text = TOKEN.sub(MASK, text)
    text = BEARER.sub(rb"\1" + MASK, text)
    text = IN_ADDRESS.sub(rb"\1" + MASK + rb"\2", text)
    text = NAME_IN_ADDRESS.sub(rb"\1" + MASK + rb"\2", text)
    for before in (SIGNATURE, LOGIN_KEY):
        text = before.sub(rb"\1" + MASK, text)
    text = GIVEN.sub(_without_value, text)
    return _without_quoted(NEXT_WORD.sub(rb"\1" + MASK, text))


def _without_value(found: re.Match[bytes]) -> bytes:
    given: bytes = found[2] or found[4] or found[5]
    return bytes(found[1]) + given + MASK


def _without_quoted(text: bytes) -> bytes:
    """The text without what else is quoted after a telling name."""
    lines, goes_on = [], False
    for line in text.split(b"\n"):
        name = TELLING.search(line)
        begins = 0 if goes_on else name.end() if name else len(line)
        lines.append(line[:begins] + QUOTED.sub(MASK, line[begins:]))
        goes_on = bool(name or goes_on) and line.rstrip().endswith(GOES_ON)
    return b"\n".join(lines)
