//! EC2: instances that start, join or do not, end, and are listed; launches under one token give one instance.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::World;
use super::account::{Action, THROTTLED, Throttled};
use super::warnings::Warning;
use super::world::is_ready;
use crate::api::{NodeClaim, labels};
use crate::catalogue::{CapacityType, RankedOffering};
use crate::lifecycle::Listed;

/// EC2 has nothing for so many seconds at most.
const LONGEST_SHORTAGE: usize = 1800;
const BOOT: SignedDuration = SignedDuration::from_secs(30);
const SHUTDOWN: SignedDuration = SignedDuration::from_secs(20);
/// EC2's code for an offering that it has nothing of.
pub(super) const NO_CAPACITY: &str = "InsufficientInstanceCapacity";

/// An instance.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) token: String,
    /// Whom it was launched for, by name and UID; empty with a batch, whose claims share what came of it out.
    pub(super) claim: String,
    pub(super) claim_uid: String,
    pub(super) batch: Option<String>,
    pub(super) offering: RankedOffering,
    launched: Timestamp,
    /// It joins then; never, if none.
    joins: Option<Timestamp>,
    /// It was asked to end, and is gone then.
    pub(super) ends: Option<Timestamp>,
    /// EC2 has warned of it.
    pub(super) warned: Option<Warning>,
    /// Its kubelet does not answer.
    pub(super) ill: Option<Illness>,
}

impl Instance {
    /// Its id, and how it was bought.
    pub(super) fn bought(&self) -> (String, CapacityType) {
        (self.id.clone(), self.offering.capacity_type)
    }
}

/// A kubelet's silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Illness {
    pub(super) since: Timestamp,
    /// Never, if none.
    heals: Option<Timestamp>,
}

/// Says why a launch gave nothing that the caller knows of.
pub(super) enum Refusal {
    /// EC2 says this.
    Code(&'static str),
    LostReply,
}

impl World {
    pub(super) fn launch(
        &mut self,
        claim: &str,
        uid: &str,
        token: &str,
        offering: RankedOffering,
    ) -> Result<Instance, Refusal> {
        self.ask_ec2(Action::CreateFleet).map_err(|Throttled| Refusal::Code(THROTTLED))?;
        if let Some(known) = self.instances.values().find(|instance| instance.token == token) {
            return Ok(known.clone());
        }
        super::check::is_not_asked_at_once(self, claim, uid);
        if let Some(code) = self.refusal(claim, uid, token) {
            return Err(Refusal::Code(code));
        }
        if self.is_spent() || self.random.happens(self.faults.no_capacity_permille) {
            return Err(Refusal::Code(NO_CAPACITY));
        }
        let instance = self.start(token, (claim, uid), None, offering);
        if self.random.happens(self.faults.lost_reply_permille) { Err(Refusal::LostReply) } else { Ok(instance) }
    }

    /// Launches for several claims at once: so many as there is capacity for.
    pub(super) fn launch_batch(
        &mut self,
        id: &str,
        claims: &[NodeClaim],
        offering: &RankedOffering,
    ) -> Result<Vec<Instance>, Refusal> {
        self.ask_ec2(Action::CreateFleet).map_err(|Throttled| Refusal::Code(THROTTLED))?;
        for claim in claims {
            let [name, uid] = [&claim.metadata.name, &claim.metadata.uid].map(|one| one.clone().unwrap_or_default());
            super::check::is_not_asked_at_once(self, &name, &uid);
            if let Some(code) = self.refusal(&name, &uid, id) {
                return Err(Refusal::Code(code));
            }
        }
        let short = self.is_spent() || self.random.happens(self.faults.no_capacity_permille);
        let most = if self.is_spent() { 1 } else { claims.len() };
        let there = if short { self.random.below(most) } else { claims.len() };
        if there == 0 {
            return Err(Refusal::Code(NO_CAPACITY));
        }
        self.batches += 1;
        let made = (0..there).map(|_| self.start(id, ("", ""), Some(id), offering.clone())).collect();
        if self.random.happens(self.faults.lost_reply_permille) { Err(Refusal::LostReply) } else { Ok(made) }
    }

    fn start(
        &mut self,
        token: &str,
        (claim, uid): (&str, &str),
        batch: Option<&str>,
        offering: RankedOffering,
    ) -> Instance {
        self.count += 1;
        let joins = (!self.random.happens(self.faults.never_joins_permille)).then(|| self.now + BOOT);
        let instance = Instance {
            id: format!("aws:///{}/i-{:06}", offering.zone.name, self.count),
            token: token.to_owned(),
            claim: claim.to_owned(),
            claim_uid: uid.to_owned(),
            batch: batch.map(str::to_owned),
            offering,
            launched: self.now,
            joins,
            ends: None,
            warned: None,
            ill: None,
        };
        self.launches += 1;
        self.instances.insert(instance.id.clone(), instance.clone());
        instance
    }

    /// Lets a second pass: now and then EC2 has nothing of any kind for a while.
    pub(super) fn run_out(&mut self) {
        if !self.is_spent() && self.random.happens(self.faults.runs_out_permille) {
            self.spent = Some(self.now + SignedDuration::from_secs(1 + self.random.below(LONGEST_SHORTAGE) as i64));
        }
    }

    /// With the faults all shortages end.
    fn is_spent(&self) -> bool {
        self.faults.runs_out_permille > 0 && self.spent.is_some_and(|until| self.now < until)
    }

    fn is_listed(&self, instance: &Instance) -> bool {
        self.now.duration_since(instance.launched).as_secs() >= i64::from(self.faults.list_lag_seconds)
    }

    pub(super) fn find(&mut self, claim_uid: &str) -> Result<Option<Instance>, Throttled> {
        self.ask_ec2(Action::Describe)?;
        let wanted = |one: &&Instance| one.claim_uid == claim_uid && one.ends.is_none() && self.is_listed(one);
        Ok(self.instances.values().find(wanted).cloned())
    }

    /// Finds what a batch gave, by its tag.
    pub(super) fn find_batch(&mut self, id: &str) -> Result<Vec<Instance>, Throttled> {
        self.ask_ec2(Action::Describe)?;
        let wanted = |one: &&Instance| one.batch.as_deref() == Some(id) && one.ends.is_none() && self.is_listed(one);
        Ok(self.instances.values().filter(wanted).cloned().collect())
    }

    /// Says whether an instance was asked to end and is still there.
    pub(super) fn is_ending(&mut self, id: &str) -> Result<bool, Throttled> {
        self.ask_ec2(Action::Describe)?;
        Ok(self.instances.get(id).is_some_and(|instance| instance.ends.is_some() && self.is_listed(instance)))
    }

    /// Asks that an instance ends; says whether EC2 knows it. One that is not listed yet is not known either, and lives on.
    pub(super) fn terminate(&mut self, id: &str) -> Result<bool, Throttled> {
        self.ask_ec2(Action::TerminateInstances)?;
        let known = self.instances.get(id).is_some_and(|instance| self.is_listed(instance));
        if known {
            self.end(id);
        }
        Ok(known)
    }

    pub(super) fn end(&mut self, id: &str) {
        let end = self.now + SHUTDOWN;
        if let Some(instance) = self.instances.get_mut(id) {
            instance.ends.get_or_insert(end);
        }
    }

    pub(super) fn is_alive(&self, id: &str) -> bool {
        self.instances.get(id).is_some_and(|instance| instance.ends.is_none())
    }

    pub(super) fn list(&mut self) -> Result<Vec<Listed>, Throttled> {
        self.ask_ec2(Action::Describe)?;
        let one = |instance: &Instance| Listed {
            provider_id: instance.id.clone(),
            claim: Some(instance.claim.clone()).filter(|name| !name.is_empty()),
            batch: instance.batch.clone(),
            ending: instance.ends.is_some(),
        };
        let mut listed: Vec<Listed> = self.instances.values().filter(|one| self.is_listed(one)).map(one).collect();
        let (random, permille) = (&mut self.random, self.faults.unlisted_permille);
        listed.retain(|_| !random.happens(permille));
        Ok(listed)
    }

    /// Judges the end of the instance of a node that was emptied. What still runs there is killed: S-2.
    pub(super) fn ended_drained(&mut self, id: &str, node: &str, deadline: Option<Timestamp>) {
        if deadline.is_some_and(|deadline| self.now >= deadline) {
            return;
        }
        let killed = self.pods.values().find(|pod| pod.node.as_deref() == Some(node) && pod.deletes_at.is_none());
        if let Some(what) = killed.map(|pod| format!("{} was killed with its instance {id}", pod.key)) {
            self.violate("S-2", what);
        }
    }

    /// Lets a second pass in the cloud.
    pub(super) fn pass_in_cloud(&mut self) {
        let now = self.now;
        self.instances.retain(|_, instance| instance.ends.is_none_or(|at| at > now));
        let ids: Vec<String> = self.instances.keys().cloned().collect();
        if !ids.is_empty() && self.random.happens(self.faults.ends_permille) {
            let unlucky = &ids[self.random.below(ids.len())];
            self.end(unlucky);
        }
        self.fall_ill();
    }

    /// Lets the cluster see what became of its instances: kubelets join, nodes without an instance go, and each says whether it is well.
    pub(super) fn join(&mut self) {
        let now = self.now;
        let ids: Vec<String> = self.instances.keys().cloned().collect();
        for id in ids {
            let joins = self.instances.get_mut(&id).and_then(|instance| instance.joins.take_if(|at| *at <= now));
            let alive = self.instances.get(&id).filter(|instance| instance.ends.is_none()).cloned();
            if let (Some(_), Some(instance)) = (joins, alive) {
                let node = self.joined(&instance);
                let name = node.metadata.name.clone().unwrap_or_default();
                self.nodes.insert(name, node);
            }
        }
        let joined = |node: &core::Node| id_of(node).is_some_and(|id| self.instances.contains_key(id));
        // the cloud's own controller deletes what has no instance any more; finalizers hold it
        let left: Vec<String> = self.nodes.iter().filter(|(_, node)| !joined(node)).map(|(n, _)| n.clone()).collect();
        for name in left {
            match self.nodes.get_mut(&name) {
                Some(node) if node.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()) => {
                    node.metadata.deletion_timestamp.get_or_insert(Time(now));
                }
                _ => drop(self.nodes.remove(&name)),
            }
        }
        for node in self.nodes.values_mut() {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
            let answers =
                self.instances.get(&id).is_some_and(|instance| instance.ends.is_none() && instance.ill.is_none());
            let said = if answers { "True" } else { "Unknown" };
            for condition in node.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
                if condition.status != said {
                    said.clone_into(&mut condition.status);
                    condition.last_transition_time = Some(Time(now));
                }
            }
        }
    }

    /// Kubelets that stop answering, and those that answer again.
    fn fall_ill(&mut self) {
        let now = self.now;
        let answers: BTreeSet<&str> = self.nodes.values().filter(|node| is_ready(node)).filter_map(id_of).collect();
        let well = |one: &&Instance| one.ill.is_none() && answers.contains(one.id.as_str());
        let ids: Vec<String> = self.instances.values().filter(well).map(|one| one.id.clone()).collect();
        for instance in self.instances.values_mut().filter(|one| one.ends.is_none()) {
            instance.ill.take_if(|ill| ill.heals.is_some_and(|at| at <= now));
        }
        if ids.is_empty() || !self.random.happens(self.faults.ills_permille) {
            return;
        }
        let other = self.instances.values().any(|one| one.ill.is_some_and(|ill| ill.heals.is_none()));
        let minutes = 1 + self.random.below(40) as i64;
        let heals = (other || self.random.happens(500)).then(|| now + SignedDuration::from_mins(minutes));
        if let Some(unlucky) = self.instances.get_mut(&ids[self.random.below(ids.len())]) {
            unlucky.ill = Some(Illness { since: now, heals });
        }
    }

    /// The node of an instance as kubelet registers it.
    fn joined(&self, instance: &Instance) -> core::Node {
        let name = instance.id.rsplit('/').next().unwrap_or_default();
        let t = self.catalogue.get(&instance.offering.instance_type);
        let (capacity, allocatable) = t.map(|t| (t.capacity.to_api(), t.allocatable().to_api())).unwrap_or_default();
        let node = json!({
            "metadata": {"name": name, "uid": format!("node-{name}"), "creationTimestamp": self.now,
                "labels": {"kubernetes.io/hostname": name}},
            "spec": {"providerID": instance.id, "taints": [{"key": labels::UNREGISTERED, "effect": "NoExecute"}]},
            "status": {"capacity": capacity, "allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        serde_json::from_value(node).unwrap_or_default()
    }
}

fn id_of(node: &core::Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref()
}

pub(super) fn zone_of(instance: &Instance) -> Arc<str> {
    instance.offering.zone.name.clone()
}
