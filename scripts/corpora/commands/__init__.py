"""The grammar of the spoken commands; see make_commands.py."""
