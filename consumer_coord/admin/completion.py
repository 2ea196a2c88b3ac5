"""``consumer-coord completion SHELL``: a script that completes commands, flags and file names, generated from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import attrs

SHELLS = ("bash", "zsh", "fish")
#: Flags whose value is a file.
_FILES = ("--command-config", "--from-file", "--replay", "--keep", "--record", "--html", "--report", "--data-dir")


@attrs.frozen
class Flag:
    """A flag of a command."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


def flags_of(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    """Yield the flags of one command."""
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            choices = tuple(str(one) for one in action.choices or ())
            yield Flag(tuple(action.option_strings), action.nargs != 0, choices, (action.help or "").replace("%%", "%"))


def _words_of(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the choices of the positional arguments."""
    return tuple(str(one) for action in parser._actions if not action.option_strings for one in action.choices or ())


def script(shell: str, commands: Mapping[str, argparse.ArgumentParser], helps: Mapping[str, str]) -> str:
    """Return the completion script of a shell; ``commands``: name -> parser, ``helps``: name -> one line of help."""
    if shell == "fish":
        return "\n".join(_fish(commands, helps)) + "\n"
    lines = [*_bash(commands)]
    if shell == "zsh":
        # zsh can run bash completions. Call compinit only if the user's configuration has not called it.
        lines = ["autoload -Uz +X compinit bashcompinit", "(( $+functions[compdef] )) || compinit", "bashcompinit", *lines]
    return "\n".join(lines) + "\n"


def _bash(commands: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "_consumer_coord() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words'
    yield "    COMPREPLY=()"
    yield '    case "$previous" in'
    yield f"        {'|'.join(_FILES)})"
    yield '            compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")); return ;;'
    yield "    esac"
    yield '    case "${COMP_WORDS[1]}" in'
    for name, parser in commands.items():
        flags = list(flags_of(parser))
        yield f"        {name})"
        for flag in flags:
            if flag.choices:
                names, choices = "|".join(flag.names), " ".join(flag.choices)
                offer = f'COMPREPLY=($(compgen -W "{choices}" -- "$current")); return'
                yield f'            case "$previous" in {names}) {offer} ;; esac'
        words = [*_words_of(parser), *(one for flag in flags for one in flag.names)]
        yield f'            words="{" ".join(words)}" ;;'
    yield f'        *) words="{" ".join(commands)} --help --version" ;;'
    yield "    esac"
    yield f'    if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(commands)} --help --version"; fi'
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -F _consumer_coord consumer-coord"


def _fish(commands: Mapping[str, argparse.ArgumentParser], helps: Mapping[str, str]) -> Iterator[str]:
    yield "complete -c consumer-coord -f"
    for name, parser in commands.items():
        yield f"complete -c consumer-coord -n __fish_use_subcommand -a {name} -d {_quoted(helps.get(name, ''))}"
        if words := _words_of(parser):
            yield f"complete -c consumer-coord -n '__fish_seen_subcommand_from {name}' -a {_quoted(' '.join(words))}"
        for flag in flags_of(parser):
            parts = [f"complete -c consumer-coord -n '__fish_seen_subcommand_from {name}'"]
            parts += [f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in flag.names]
            if flag.takes_value:
                parts.append("-r")
            if flag.choices:
                parts.append(f"-a {_quoted(' '.join(flag.choices))}")
            elif set(flag.names) & set(_FILES):
                parts.append("-F")
            yield " ".join([*parts, f"-d {_quoted(flag.help)}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
