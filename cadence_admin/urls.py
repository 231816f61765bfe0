"""The routes of the site."""

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import include, path
from django.views.generic import RedirectView

from cadence_admin import oidc, views
from cadence_admin.sign_ins import SignIn

handler500 = "cadence_admin.views.server_error"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="runs:list"), name="home"),
    path("runs/", include("runs.urls")),
    path("", include("approvals.urls")),
    path("leases/", views.lease_list, name="leases"),
    path("leases/reclaim/", views.lease_reclaim, name="lease-reclaim"),
    path("leases/workers/free/", views.worker_free, name="worker-free"),
    path("audit/", views.audit_log, name="audit"),
    path("audit/verify/", views.audit_verify, name="audit-verify"),
    path("sign-in/", SignIn.as_view(), name="sign-in"),
    path("sign-in/oidc/", oidc.start, name="oidc"),
    path("sign-in/oidc/callback/", oidc.callback, name="oidc-callback"),
    path("sign-out/", LogoutView.as_view(), name="sign-out"),
    path("admin/", admin.site.urls),
]
