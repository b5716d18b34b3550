//! The wish of a pod's owner that it is left alone: how it is written, and how it stands at a time.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Pod;
use crate::api::{go_duration, labels};

/// Says whether a pod's owner asked that it is left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DoNotDisrupt {
    /// Not asked.
    No,
    /// As long as it runs.
    Always,
    /// For this long after its start.
    For(SignedDuration),
    /// Asked in words that say neither how long nor for ever: it protects nothing, and the owner should hear of it.
    Unclear(Arc<str>),
}

impl DoNotDisrupt {
    /// Reads the annotation `karpenter.sh/do-not-disrupt` of a pod: `true`, or a time above zero as Go writes it, such as `1h30m` or `1.5h`.
    /// `false` is what pods are without it.
    #[must_use]
    pub fn read(value: Option<&str>) -> Self {
        match value {
            None | Some("false") => Self::No,
            Some("true") => Self::Always,
            Some(text) => match go_duration(text) {
                Some(time) if time.is_positive() => Self::For(time),
                _ => Self::Unclear(text.into()),
            },
        }
    }
}

/// Says how a pod's wish to be left alone stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection<'a> {
    /// It asks for nothing.
    None,
    /// It is left alone as long as it runs.
    Always,
    /// It is left alone until then; with none as long as its start is not known.
    Until(Option<Timestamp>),
    /// It was left alone until then.
    Over(Timestamp),
    /// It asks in words that nobody can read, and is not left alone.
    Unclear(&'a str),
}

impl Protection<'_> {
    /// Says whether the pod is left alone.
    #[must_use]
    pub const fn holds(&self) -> bool {
        matches!(self, Self::Always | Self::Until(_))
    }
}

impl fmt::Display for Protection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = labels::DO_NOT_DISRUPT;
        match self {
            Self::None => write!(f, "{key} is not set: the pod may be disrupted"),
            Self::Always => write!(f, "{key} leaves the pod alone as long as it runs"),
            Self::Until(None) => write!(f, "{key} leaves the pod alone: it has not started yet"),
            Self::Until(Some(end)) => write!(f, "{key} leaves the pod alone until {end:.0}"),
            Self::Over(end) => write!(f, "{key} left the pod alone until {end:.0}: it may be disrupted now"),
            Self::Unclear(text) => {
                write!(f, "{key} has no effect: {text:?} is neither true nor a time above zero, such as 30m or 1h30m")
            }
        }
    }
}

impl Pod {
    /// Answers how the pod's wish to be left alone stands.
    pub fn protection(&self, now: Timestamp) -> Protection<'_> {
        match &self.do_not_disrupt {
            DoNotDisrupt::No => Protection::None,
            DoNotDisrupt::Always => Protection::Always,
            DoNotDisrupt::Unclear(text) => Protection::Unclear(text),
            DoNotDisrupt::For(_) => match self.protected_until() {
                Some(end) if end <= now => Protection::Over(end),
                until => Protection::Until(until),
            },
        }
    }

    /// Says whether the pod asks to be left alone now.
    pub fn is_protected(&self, now: Timestamp) -> bool {
        self.protection(now).holds()
    }

    /// Answers when the pod's wish to be left alone ends; none where it does not, or where the pod's start is not known.
    pub fn protected_until(&self) -> Option<Timestamp> {
        let DoNotDisrupt::For(time) = self.do_not_disrupt else { return None };
        self.started?.saturating_add(time).ok()
    }
}
