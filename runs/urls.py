"""The pages of runs."""

from django.urls import path

from runs import views

app_name = "runs"
urlpatterns = [
    path("", views.run_list, name="list"),
    path("<str:run_id>/", views.run_detail, name="detail"),
    path("<str:run_id>/verification/", views.run_verification, name="verification"),
    path("<str:run_id>/move/", views.run_move, name="move"),
    path("<str:run_id>/<slug:kind>/", views.run_records, name="records"),
]
