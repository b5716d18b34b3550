//! Limits on disruption: a pool's budgets and the cluster's PodDisruptionBudgets.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1 as policy;

use super::{Pod, PodKey, Unreadable, UnreadableField};
use crate::api::BudgetReason as Reason;
use crate::cron::{Cron, ParseCronError};
use crate::requirement::Selector;

/// Holds one of a pool's budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// How many nodes may be disrupted at once.
    pub nodes: Share,
    /// For which reasons; none for all. An empty list, as in Karpenter, is for no reason.
    pub reasons: Option<Vec<Reason>>,
    /// When it applies; always if there is none.
    pub window: Option<Window>,
}

/// Holds a number of nodes or a share of the pool's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// So many.
    Count(u32),
    /// Percent, rounded up.
    Percent(u32),
    /// It could not be read, so nothing is allowed.
    Unreadable,
}

impl Share {
    /// Reads `5` or `10%`.
    pub fn parse(text: &str) -> Self {
        let (number, percent) = text.strip_suffix('%').map_or((text, false), |number| (number, true));
        match number.parse::<u32>() {
            Ok(n) if percent && n <= 100 => Share::Percent(n),
            Ok(n) if !percent => Share::Count(n),
            _ => Share::Unreadable,
        }
    }

    /// Answers the number of nodes out of `total`.
    pub fn of(self, total: u32) -> u32 {
        match self {
            Share::Count(n) => n,
            Share::Percent(p) => (u64::from(total) * u64::from(p)).div_ceil(100) as u32,
            Share::Unreadable => 0,
        }
    }
}

/// Holds a recurring window: it opens at each time of the schedule (UTC) and lasts for the duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Cron expression of five fields, or `@hourly` and the like.
    pub schedule: Arc<str>,
    /// How long it stays open.
    pub duration: SignedDuration,
}

impl Window {
    /// Says whether the window is open: it opened within its length before now. One whose schedule never comes (31 February) is open
    /// always, as in Karpenter, so that its limit holds.
    ///
    /// # Errors
    /// When the schedule cannot be read.
    pub fn is_open(&self, now: Timestamp) -> Result<bool, ParseCronError> {
        let schedule: Cron = self.schedule.parse()?;
        let start = now.checked_sub(self.duration).unwrap_or(Timestamp::MIN);
        Ok(schedule.next(start).is_none_or(|next| next <= now))
    }
}

/// Answers how many of `total` nodes may be disrupted at once for a reason now: the least of the budgets that apply; no limit
/// when none does; none at all when a budget cannot be read, even one for other reasons, as in Karpenter.
pub fn allowed(budgets: &[Budget], reason: Reason, total: u32, now: Timestamp) -> u32 {
    let mut least = u32::MAX;
    for budget in budgets {
        let limit = match budget.window.as_ref().map(|window| window.is_open(now)) {
            Some(Ok(false)) => u32::MAX,
            Some(Err(_)) => return 0,
            None | Some(Ok(true)) if budget.nodes == Share::Unreadable => return 0,
            None | Some(Ok(true)) => budget.nodes.of(total),
        };
        if budget.reasons.as_ref().is_none_or(|reasons| reasons.contains(&reason)) {
            least = least.min(limit);
        }
    }
    least
}

/// Answers whether no node may be disrupted for a reason now, however many there are and whoever is disrupted already.
pub fn is_closed(budgets: &[Budget], reason: Reason, now: Timestamp) -> bool {
    // a share is rounded up: of one node, any share above none is one
    allowed(budgets, reason, 1, now) == 0
}

/// Describes a PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq)]
pub struct PodBudget {
    /// Namespace and name.
    pub key: PodKey,
    /// Pods that it protects; none without a selector.
    pub selector: Option<Selector>,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: u32,
    /// `status.currentHealthy`.
    pub healthy: u32,
    /// `status.desiredHealthy`.
    pub desired: u32,
    /// `unhealthyPodEvictionPolicy: AlwaysAllow`.
    pub allows_unhealthy: bool,
}

impl PodBudget {
    /// Reads a PodDisruptionBudget; one without a selector protects nothing.
    pub fn from_kube(budget: &policy::PodDisruptionBudget) -> Result<Self, Unreadable> {
        let meta = &budget.metadata;
        let key = PodKey::new(meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default());
        let spec = budget.spec.clone().unwrap_or_default();
        let selector = match &spec.selector {
            Some(selector) => Some(Selector::try_from(selector).map_err(|e| {
                UnreadableField::new("spec.selector".to_owned(), e.to_string()).of("PodDisruptionBudget", &key)
            })?),
            None => None,
        };
        let status = budget.status.clone().unwrap_or_default();
        let count = |pods: i32| u32::try_from(pods).unwrap_or(0);
        Ok(PodBudget {
            selector,
            disruptions_allowed: count(status.disruptions_allowed),
            healthy: count(status.current_healthy),
            desired: count(status.desired_healthy),
            allows_unhealthy: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
            key,
        })
    }

    /// Says whether the budget protects a pod.
    pub fn protects(&self, pod: &Pod) -> bool {
        self.key.namespace == pod.key.namespace && self.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
    }
}

/// Answers the budget that forbids evicting a pod now: one without allowance, or any when the pod has more than one (the
/// eviction API refuses those).
pub fn blocking<'a>(budgets: &'a [Arc<PodBudget>], pod: &Pod) -> Option<&'a PodBudget> {
    let mut mine = budgets.iter().filter(|budget| budget.protects(pod));
    let first = mine.next()?;
    if let Some(second) = mine.next() {
        return Some(second);
    }
    let free = first.disruptions_allowed > 0 || (first.allows_unhealthy && !pod.ready);
    (!free).then_some(&**first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn windows_open_and_close() {
        let window = Window { schedule: "0 9 * * 1-5".into(), duration: SignedDuration::from_hours(8) };
        assert_eq!(window.is_open(at("2026-11-20T09:00:00Z")), Ok(true));
        assert_eq!(window.is_open(at("2026-11-20T16:59:59Z")), Ok(true));
        assert_eq!(window.is_open(at("2026-11-20T17:00:00Z")), Ok(false));
        assert_eq!(window.is_open(at("2026-11-21T12:00:00Z")), Ok(false));
        let never = Window { schedule: "0 0 31 2 *".into(), duration: SignedDuration::from_hours(1) };
        assert_eq!(never.is_open(at("2026-11-21T12:00:00Z")), Ok(true));
        let bad = Window { schedule: "0 0 L * *".into(), duration: SignedDuration::from_hours(1) };
        assert!(bad.is_open(at("2026-11-21T12:00:00Z")).is_err());
    }

    #[test]
    fn the_least_of_the_matching_budgets_holds() {
        let budget = |nodes: &str, reasons: &[Reason]| Budget {
            nodes: Share::parse(nodes),
            reasons: Some(reasons.to_vec()).filter(|reasons| !reasons.is_empty()),
            window: None,
        };
        let now = at("2026-11-21T12:00:00Z");
        let budgets = [budget("10%", &[]), budget("1", &[Reason::Underutilized])];
        assert_eq!(allowed(&budgets, Reason::Empty, 11, now), 2);
        assert_eq!(allowed(&budgets, Reason::Underutilized, 100, now), 1);
        assert_eq!(allowed(&[budget("3", &[Reason::Drifted])], Reason::Empty, 100, now), u32::MAX);
        assert_eq!(allowed(&[budget("x", &[])], Reason::Empty, 100, now), 0);
        assert_eq!(allowed(&[budget("x", &[Reason::Drifted])], Reason::Empty, 100, now), 0);
        let none = Budget { reasons: Some(Vec::new()), ..budget("0", &[]) };
        assert_eq!(allowed(&[none], Reason::Empty, 100, now), u32::MAX);
    }
}
