"""The same examples in every run; `pytest --hypothesis-profile=default` draws new ones."""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.load_profile("same")
