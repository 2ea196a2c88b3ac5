"""``consumer-coord completion SHELL``: a script that completes commands, flags and file names, from the table of commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import attrs

from consumer_coord.command_table import COMMANDS, add_flags

SHELLS = ("bash", "zsh", "fish")
#: The metavars of flags whose value is a file or a directory.
_PATHS = ("FILE", "FILE.html", "FILE.json", "DIR")

_DESCRIPTION = (
    'Print a script that completes commands and flags. bash: add eval "$(consumer-coord completion bash)" to ~/.bashrc;'
    " zsh: the same with zsh, in ~/.zshrc; fish: consumer-coord completion fish >"
    " ~/.config/fish/completions/consumer-coord.fish"
)


@attrs.frozen
class Flag:
    """A flag of a command."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    metavar: str
    help: str


def flags_of(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    """Yield the flags of one command."""
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            choices = tuple(str(one) for one in action.choices or ())
            metavar, help_ = str(action.metavar or ""), (action.help or "").replace("%%", "%")
            yield Flag(tuple(action.option_strings), action.nargs != 0, choices, metavar, help_)


def _words_of(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the choices of the positional arguments."""
    return tuple(str(one) for action in parser._actions if not action.option_strings for one in action.choices or ())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of ``completion``."""
    parser.description = _DESCRIPTION
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(arguments.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell, for all commands of the table."""
    commands = {}
    for command in COMMANDS.values():
        commands[command.name] = argparse.ArgumentParser(allow_abbrev=False)
        add_flags(command, commands[command.name])
    if shell == "fish":
        return "\n".join(_fish(commands)) + "\n"
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
    yield f"        {'|'.join(_path_flags(commands))})"
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


def _path_flags(commands: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    flags = (flag for parser in commands.values() for flag in flags_of(parser) if flag.metavar in _PATHS)
    return sorted({name for flag in flags for name in flag.names})


def _fish(commands: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "complete -c consumer-coord -f"
    for name, parser in commands.items():
        yield f"complete -c consumer-coord -n __fish_use_subcommand -a {name} -d {_quoted(COMMANDS[name].help)}"
        if words := _words_of(parser):
            yield f"complete -c consumer-coord -n '__fish_seen_subcommand_from {name}' -a {_quoted(' '.join(words))}"
        for flag in flags_of(parser):
            parts = [f"complete -c consumer-coord -n '__fish_seen_subcommand_from {name}'"]
            parts += [f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in flag.names]
            if flag.takes_value:
                parts.append("-r")
            if flag.choices:
                parts.append(f"-a {_quoted(' '.join(flag.choices))}")
            elif flag.metavar in _PATHS:
                parts.append("-F")
            yield " ".join([*parts, f"-d {_quoted(flag.help)}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
