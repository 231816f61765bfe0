"""What every command of the console is: it names the permission for what it does, and acts on somebody's behalf."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from cadence_admin.access import access_of, roots_of
from cadence_admin.origin import Origin, acting


class ConsoleCommand(BaseCommand):
    """Who may run it is up to the machine. With `--as` it is done on behalf of an account, if that has the `permission`;
    the audit log names the account then, and else the command."""

    permission: str

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> Any:
        parser: ArgumentParser = super().create_parser(prog_name, subcommand, **options)
        parser.add_argument(
            "--as", dest="account", default="", metavar="USER", help=f"on behalf of USER, who needs {self.permission}"
        )
        self._name = subcommand
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        account = options.pop("account", "")
        if account:
            user = User.objects.filter(username=account, is_active=True).first()
            if user is None or not user.has_perm(self.permission):
                raise CommandError(f"not-permitted: {account} is no account with the permission {self.permission}")
            if not access_of(user).is_whole or "*" not in roots_of(user).changeable:
                raise CommandError(f"not-permitted: commands are about all tenants and projects, {account} is not")
        with acting(Origin(account or f"manage.py {getattr(self, '_name', type(self).__module__.rpartition('.')[2])}")):
            return super().execute(*args, **options)
