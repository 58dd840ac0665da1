"""`transduce completion bash`: what the Tab key writes."""

from typing import Annotated

from tyro.conf import Positional, arg

from transduce.errors import InputError

SCRIPT = """# names of commands and their flags; where neither can stand, names of files
_transduce() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} first=${{COMP_WORDS[1]}} n=1
  COMPREPLY=()
  case $first in {groups}) n=2 ;; esac
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{names}" -- "$current"))
  elif (( COMP_CWORD == 2 && n == 2 )); then
    case $first in
{parts}
    esac
  elif [[ $current == -* ]]; then
    local command=("$1" "${{COMP_WORDS[@]:1:n}}")
    COMPREPLY=($(compgen -W "$({{ "${{command[@]}}" --help-all || "${{command[@]}}" --help; }} 2> /dev/null |
      sed -nE 's/^[^[:alnum:]-]*(-h, )?(--[a-z][a-z.-]*).*/\\2/p')" -- "$current"))
  fi
}}
complete -o bashdefault -o default -F _transduce transduce
"""

ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
"""With these, zsh completes as bash does."""


def completion(shell: Positional[Annotated[str, arg(metavar="SHELL")]]) -> None:
    """Print what lets a shell complete commands, flags and files: eval "$(transduce completion bash)" in ~/.bashrc.

    Args:
        shell: bash, or zsh, where the file is ~/.zshrc.
    """
    from transduce.cli.main import COMMANDS

    if shell not in ("bash", "zsh"):
        raise InputError(f"completion is there for bash and zsh, but the shell is {shell!r}; name one of them")
    groups: dict[str, list[str]] = {}
    for name in COMMANDS:
        first, _, second = name.partition(" ")
        groups.setdefault(first, []).extend([second] if second else [])
    parts = [
        f'      {first}) COMPREPLY=($(compgen -W "{" ".join(seconds)}" -- "$current")) ;;'
        for first, seconds in groups.items()
        if seconds
    ]
    several = "|".join(first for first, seconds in groups.items() if seconds)
    script = SCRIPT.format(names=" ".join(groups), groups=several, parts="\n".join(parts))
    print((ZSH if shell == "zsh" else "") + script, end="")
