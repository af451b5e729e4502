"""Where the time of a training run goes."""

from polynext.training.profile import Profile


def test_a_profile_counts_only_when_switched_on() -> None:
    for enabled in (False, True):
        profile = Profile(enabled)
        with profile("forward"):
            pass
        assert list(profile.iterate("loader", [1, 2])) == [1, 2]
        assert set(profile.seconds) == ({"forward", "loader"} if enabled else set())
