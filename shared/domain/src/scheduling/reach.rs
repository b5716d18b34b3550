//! Volumes that keep a pod out where its own selectors would not: a volume's labels are not the pod's.

use super::problem::{PoolState, Problem};
use super::queue::{Kind, Ways, crossed};
use super::{Hosts, Misfit, Refusal};
use crate::cluster::{ClaimRef, Pod, Snapshot, VolumeProblem};
use crate::requirement::{Incompatible, Requirements};

/// One claim of a pod and where its volume can be reached.
struct Reached<'p> {
    claim: &'p ClaimRef,
    places: Vec<Requirements>,
}

impl Reached<'_> {
    /// The claims of a pod whose volumes cannot be reached from everywhere.
    fn all<'p>(problem: &Problem<'_>, hosts: &Hosts<'_>, pod: &'p Pod) -> Vec<Reached<'p>> {
        let reached = |claim: &'p ClaimRef| {
            let alone = Pod { claims: vec![claim.clone()], ..pod.clone() };
            let places = problem.places(&alone, hosts).ok()?;
            (!places.is_empty()).then_some(Reached { claim, places })
        };
        pod.claims.iter().filter_map(reached).collect()
    }

    fn place(&self) -> String {
        let places: Vec<String> = self.places.iter().map(ToString::to_string).collect();
        places.join(" or ")
    }

    fn names(&self, snapshot: &Snapshot, pod: &Pod) -> (String, String) {
        let claim = self.claim.key(&pod.key).name.to_string();
        (claim, snapshot.volumes.source(&pod.key, self.claim))
    }
}

/// Says whether a pod's own selectors keep it from where all of its volumes can be reached, and which volume is elsewhere.
pub(crate) fn out_of_reach(
    problem: &Problem<'_>,
    hosts: &Hosts<'_>,
    pod: &Pod,
    places: &[Requirements],
) -> Option<Refusal> {
    let own = &pod.shape.alternatives;
    let meet = |places: &[Requirements]| places.iter().any(|place| own.iter().any(|wanted| wanted.overlaps(place)));
    if places.is_empty() || meet(places) {
        return None;
    }
    let reached = Reached::all(problem, hosts, pod);
    let one = reached.iter().find(|one| !meet(&one.places)).or(reached.first())?;
    let clash = own.iter().zip(one.places.iter().cycle()).find_map(|(wanted, place)| wanted.intersects(place).err());
    // a pod that contradicts itself, or has no term at all, is told so
    let Some(Incompatible::Disjoint { offered: wanted, .. }) = clash else { return None };
    let (claim, source) = one.names(problem.snapshot, pod);
    Some(Refusal::Volume { claim, problem: VolumeProblem::PodElsewhere { source, place: one.place(), wanted } })
}

/// Puts the blame on a volume in pools where a pod would get further without it. `why` is what keeps the pod out, by pool.
pub(crate) fn blame_volumes(
    (problem, hosts): (&Problem<'_>, &Hosts<'_>),
    ways: &mut Ways,
    (kind, pod): (&Kind, &Pod),
    why: &mut [Misfit],
) {
    let reached = Reached::all(problem, hosts, pod);
    let Some(wants) = kind.steps.last().filter(|_| !reached.is_empty()) else { return };
    let own = &pod.shape.alternatives;
    for (pool, misfit) in why.iter_mut().enumerate() {
        let of_labels = matches!(
            misfit,
            Misfit::Requirement { .. }
                | Misfit::NamedNode { .. }
                | Misfit::NoInstanceType { .. }
                | Misfit::NoOffering { .. }
                | Misfit::NotOffered { .. }
        );
        let mut stopped = |alternatives: &[Requirements]| {
            ways.told(problem, pool, (&kind.shape, &kind.request), wants, alternatives).err()
        };
        if !of_labels || stopped(own).is_some_and(|other| other.nearness() <= misfit.nearness()) {
            continue;
        }
        let alone = reached.iter().map(|one| (one, stopped(&crossed(own, &one.places))));
        let (one, other) = match alone.into_iter().find(|(_, stopped)| stopped.is_some()) {
            Some((one, Some(other))) => (one, other),
            _ => (&reached[0], misfit.clone()),
        };
        let (claim, source) = one.names(problem.snapshot, pod);
        let lack = lack(&problem.pools[pool], one, &other);
        *misfit = Misfit::Volume { claim, source, place: one.place(), lack };
    }
}

/// What a pool lacks where a volume is.
fn lack(state: &PoolState, one: &Reached<'_>, misfit: &Misfit) -> String {
    let clash = one.places.iter().find_map(|place| state.pool.requirements.intersects(place).err());
    match (misfit, clash) {
        (_, Some(Incompatible::Disjoint { offered, .. })) => format!("the pool allows only {offered}"),
        (Misfit::NotOffered { offered, .. }, _) => format!("and what would do is sold only {offered}"),
        (Misfit::NoOffering { .. }, _) => "and nothing that would do can be had there now".to_owned(),
        (Misfit::NoInstanceType { .. }, _) => "and no instance type that would do is there".to_owned(),
        (Misfit::NamedNode { .. }, _) => "and no new node has that name".to_owned(),
        (other, _) => other.to_string(),
    }
}
