"""The inbox at two sizes: 100 waiting of 1,000 approvals, and 100,000 waiting beside 1,000,000 decided ones."""

from collections.abc import Callable
from typing import Final

SIZES: Final = ((100, 900), (100_000, 1_000_000))
FAR: Final = 4_000_000_000_000
PAGES: Final = (
    "/approvals/",
    "/approvals/?tenant=tenant-1",
    "/approvals/?capability=payments.refund",
    "/approvals/?principal=bot",
    "/approvals/?q=order:",
    "/approvals/?show=consumed",
    "/approvals/?show=consumed&tenant=tenant-1",
    "/approvals/?show=expired",
    "/approvals/?show=mine",
    "/approvals/approval-000050/",
    "/approvals/~waiting/",
)


def run(timed: Callable[[Callable[[], object]], float]) -> None:
    """Print the table; `timed` gives the median of several runs in milliseconds."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    from approvals.tables import RECORDS
    from tests.approvals.filling import fill

    client = Client()
    client.force_login(User.objects.create_superuser("inbox"))
    taken: list[list[float]] = []
    made = 0
    for waiting, decided in SIZES:
        more = waiting + decided - made
        # Evenly mixed, as time would have it.
        fill("approval", more, f"CASE WHEN i %% 11 = 0 AND i <= {waiting * 11} OR i <= 60 THEN 'pending' ELSE 'consumed' END",
             start=made + 1, expires=FAR)  # fmt: skip
        made += more
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        for path in PAGES:
            assert client.get(path).status_code == 200, path
        taken.append([timed(lambda path=path: client.get(path)) for path in PAGES])  # type: ignore[misc]
    print(f"{'page of approvals':<48} {'1,000':>9} {'1,100,000':>12}  {'ratio':>6}")
    for path, small, large in zip(PAGES, *taken, strict=True):
        print(f"{path:<48} {small:>6.1f} ms {large:>9.1f} ms  {large / small:>6.2f}", flush=True)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {RECORDS}")
