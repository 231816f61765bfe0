"""Patterns of names: `*` stands for any run of characters, everything else for itself. The same in Python and in a query."""

import re
from typing import Any

from django.db.models import CharField, Lookup, TextField


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern stands for a text, capitals included."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


class MatchesPattern(Lookup):
    """`column__pattern="acme-*"`, by the database's own operator that tells capitals apart."""

    lookup_name = "pattern"
    prepare_rhs = False

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        escaped = re.sub(r"[\[?]", lambda match: f"[{match[0]}]", self.rhs)
        return self._compared(compiler, connection, "GLOB %s", escaped)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        escaped = re.sub(r"[\\%_]", lambda match: f"\\{match[0]}", self.rhs).replace("*", "%")
        return self._compared(compiler, connection, "LIKE %s", escaped)

    def _compared(self, compiler: Any, connection: Any, operator: str, value: str) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        return f"{column} {operator}", [*params, value]


for field in (CharField, TextField):
    field.register_lookup(MatchesPattern)
