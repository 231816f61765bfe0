"""Django's admin behind a permission of its own: a role opens it, and no flag on the user."""

from django.contrib.admin import AdminSite
from django.http import HttpRequest

USE_ADMIN = "cadence_admin.use_admin"


class ConsoleSite(AdminSite):
    site_header = site_title = "Cadence Admin"
    index_title = "Tables"

    def has_permission(self, request: HttpRequest) -> bool:
        return request.user.is_active and request.user.has_perm(USE_ADMIN)
