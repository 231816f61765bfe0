"""The error that services raise and pages and commands show."""


class ServiceError(Exception):
    """`code` is the stable name (the seeds' strings where they have one), the text is one sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
