//! What it means that EC2 does not know an instance.

use jiff::{SignedDuration, Timestamp};

/// For so long after its launch an instance may be missing from EC2's answers. They are usually right within seconds; the longest lag that
/// `reliability.md` (5.3, fault 22) asks to bear is a minute, and this is twice that.
pub const APPEARS_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Says whether an instance that EC2 does not know is gone, rather than too young to be known. Without a time of launch nothing speaks for
/// its youth.
#[must_use]
pub fn is_gone_if_unknown(launched: Option<Timestamp>, now: Timestamp) -> bool {
    launched.is_none_or(|launched| now.duration_since(launched) >= APPEARS_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_instance_that_had_time_to_appear_is_gone() {
        let launched = Timestamp::UNIX_EPOCH;
        let gone = |seconds: i64| is_gone_if_unknown(Some(launched), launched + SignedDuration::from_secs(seconds));
        assert_eq!([gone(0), gone(60), gone(119), gone(120), gone(9000)], [false, false, false, true, true]);
        assert!(!gone(-600), "a clock that went back makes nobody older");
        assert!(is_gone_if_unknown(None, launched));
    }
}
