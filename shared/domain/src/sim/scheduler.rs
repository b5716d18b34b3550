//! kube-scheduler: it binds pods by the room that nodes have, and by what pods must have of each other: spread over a topology, and others kept away
//! (`PodTopologySpread` and `InterPodAffinity`, from Kubernetes' rules; it shares nothing with the planner). Wishes, and pods that must be near
//! others, are not among the workloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::World;
use crate::cluster::{Node, Pod, PodKey, PodTerm, Readiness, Spread};
use crate::requirement::Selector;
use crate::resources::{CPU, Resources};

impl World {
    /// Binds each pod that waits to the emptiest node that fits, or any.
    pub(super) fn schedule(&mut self) {
        let waiting: Vec<PodKey> =
            self.pods.values().filter(|pod| pod.node.is_none()).map(|pod| pod.key.clone()).collect();
        if waiting.is_empty() {
            return;
        }
        let nodes: Vec<Node> = self.nodes.values().filter_map(|node| Node::from_kube(node).ok()).collect();
        let mut used: BTreeMap<Arc<str>, Resources> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| pod.holds_resources()) {
            if let Some(node) = &pod.node {
                used.entry(node.clone()).or_default().add(&pod.shape.requests);
            }
        }
        let social = self.pods.values().any(|pod| pod.shape.is_social());
        for key in waiting {
            let Some(pod) = self.pods.get(&key) else { continue };
            let fits = |node: &&Node| {
                node.ready == Readiness::Ready
                    && !node.unschedulable
                    && node.taints.iter().all(|taint| taint.admits(&pod.shape.tolerations))
                    && pod.shape.alternatives.iter().any(|wanted| wanted.match_labels(&node.labels))
                    && used
                        .get(&node.name)
                        .cloned()
                        .unwrap_or_default()
                        .plus(&pod.shape.requests)
                        .fits(&node.allocatable)
            };
            let mut open: Vec<&Node> = nodes.iter().filter(fits).collect();
            if social {
                Neighbours::of(&self.pods, &nodes).close(pod, &mut open);
            }
            if !self.random.happens(self.faults.fickle_permille) {
                let share = |node: &&Node| {
                    let taken = used.get(&node.name).map_or(0, |all| all.get(CPU).nanos());
                    taken.saturating_mul(1000) / node.allocatable.get(CPU).nanos().max(1)
                };
                let least = open.iter().map(share).min();
                open.retain(|node| Some(share(node)) == least);
            }
            let chosen = open.get(self.random.below(open.len())).map(|node| node.name.clone());
            let request = pod.shape.requests.clone();
            let Some(pod) = self.pods.get_mut(&key) else { continue };
            pod.unschedulable = chosen.is_none();
            if let Some(node) = chosen {
                used.entry(node.clone()).or_default().add(&request);
                pod.node = Some(node.clone());
                self.pod_event(&node);
            }
        }
    }
}

/// The pods that are on nodes, and all nodes.
struct Neighbours<'w> {
    housed: Vec<(&'w Pod, &'w Node)>,
    nodes: &'w [Node],
}

impl<'w> Neighbours<'w> {
    fn of(pods: &'w BTreeMap<PodKey, Pod>, nodes: &'w [Node]) -> Self {
        let by_name: BTreeMap<&str, &'w Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        let home = |pod: &'w Pod| Some((pod, *by_name.get(pod.node.as_deref()?)?));
        Neighbours { housed: pods.values().filter_map(home).collect(), nodes }
    }

    /// Closes the nodes to which a pod must not go because of other pods.
    fn close(&self, pod: &Pod, open: &mut Vec<&Node>) {
        for spread in pod.shape.spread.iter().filter(|spread| spread.required) {
            let counts = self.counts(pod, spread);
            let domains_lack = spread.min_domains.is_some_and(|least| counts.len() < least as usize);
            let least = if domains_lack { 0 } else { counts.values().copied().min().unwrap_or(0) };
            let own = usize::from(is_meant(spread.selector.as_ref(), pod));
            open.retain(|node| {
                let domain = node.labels.get(&*spread.key);
                let count = |domain: &String| counts.get(domain.as_str()).copied().unwrap_or(0);
                domain.is_some_and(|domain| count(domain) + own <= least + spread.max_skew as usize)
            });
        }
        open.retain(|node| !self.housed.iter().any(|(other, at)| keeps_away(pod, other, node, at)));
    }

    /// Counts pods that stay by domain, as a spread does: on nodes that have the labels of all firm spreads of the pod, and that it looks at.
    fn counts(&self, pod: &Pod, spread: &Spread) -> BTreeMap<&'w str, usize> {
        let shape = &pod.shape;
        let domain = |node: &'w Node| {
            let labelled =
                shape.spread.iter().filter(|other| other.required).all(|other| node.labels.contains_key(&*other.key));
            let wanted = || shape.alternatives.iter().any(|wanted| wanted.match_labels(&node.labels));
            let borne = || node.taints.iter().all(|taint| taint.admits(&shape.tolerations));
            let looked_at = labelled && (!spread.honors_affinity || wanted()) && (!spread.honors_taints || borne());
            node.labels.get(&*spread.key).filter(|_| looked_at).map(String::as_str)
        };
        let mut counts: BTreeMap<&'w str, usize> =
            self.nodes.iter().filter_map(domain).map(|domain| (domain, 0)).collect();
        for &(other, node) in &self.housed {
            let stays = other.deletes_at.is_none() && other.key.namespace == pod.key.namespace;
            if let Some(domain) = domain(node)
                && stays
                && is_meant(spread.selector.as_ref(), other)
            {
                *counts.entry(domain).or_default() += 1;
            }
        }
        counts
    }
}

fn is_meant(selector: Option<&Selector>, pod: &Pod) -> bool {
    selector.is_some_and(|selector| selector.matches(&pod.labels))
}

/// Says whether a pod must not go to a node because another is at its own, by the rule of either. One that ends counts until it has gone.
fn keeps_away(pod: &Pod, other: &Pod, node: &Node, at: &Node) -> bool {
    let meets = |term: &PodTerm, whom: &Pod| {
        let domain = node.labels.get(&*term.key);
        domain.is_some()
            && domain == at.labels.get(&*term.key)
            && is_meant(term.selector.as_ref(), whom)
            && term.namespaces.contain(&whom.key.namespace, &BTreeMap::new())
    };
    pod.shape.anti_affinity.iter().any(|term| meets(term, other))
        || other.shape.anti_affinity.iter().any(|term| meets(term, pod))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, zone: &str) -> Node {
        let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        Node::from_kube(&serde_json::from_value(node).unwrap()).unwrap()
    }

    fn pod(name: &str, node: Option<&str>, asks: &Value) -> Pod {
        let mut spec = json!({"containers": [{"name": "c"}], "nodeName": node});
        spec.as_object_mut().unwrap().extend(asks.as_object().unwrap().clone());
        let pod = json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": spec});
        Pod::from_kube(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn spread() -> Value {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]})
    }

    fn apart() -> Value {
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}}})
    }

    /// The nodes that are open to a pod beside others.
    fn open_to(pod: &Pod, others: Vec<Pod>, nodes: &[Node]) -> Vec<String> {
        let others: BTreeMap<PodKey, Pod> = others.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
        let mut open: Vec<&Node> = nodes.iter().collect();
        Neighbours::of(&others, nodes).close(pod, &mut open);
        open.iter().map(|node| node.name.to_string()).collect()
    }

    #[test]
    fn a_spread_counts_pods_that_stay_in_the_zones_of_nodes_that_are_there() {
        let nodes = [node("a1", "a"), node("a2", "a"), node("b", "b")];
        let new = pod("new", None, &spread());
        let on = |name: &str, node: &str| pod(name, Some(node), &json!({}));
        assert_eq!(open_to(&new, Vec::new(), &nodes), ["a1", "a2", "b"]);
        assert_eq!(open_to(&new, vec![on("1", "a1")], &nodes), ["b"]);
        // whoever ends counts no more
        let ends = Pod { deletes_at: Some(jiff::Timestamp::UNIX_EPOCH), ..on("1", "a1") };
        assert_eq!(open_to(&new, vec![ends], &nodes), ["a1", "a2", "b"]);
        // a zone without a node is none
        assert_eq!(open_to(&new, vec![on("1", "a1"), on("2", "a1")], &nodes[..2]), ["a1", "a2"]);
    }

    #[test]
    fn pods_are_kept_away_from_each_other_by_the_rule_of_either_until_they_have_gone() {
        let nodes = [node("a", "a"), node("b", "b")];
        let plain = json!({});
        assert_eq!(open_to(&pod("new", None, &apart()), vec![pod("1", Some("a"), &plain)], &nodes), ["b"]);
        assert_eq!(open_to(&pod("new", None, &plain), vec![pod("1", Some("a"), &apart())], &nodes), ["b"]);
        assert_eq!(open_to(&pod("new", None, &plain), vec![pod("1", Some("a"), &plain)], &nodes), ["a", "b"]);
        let ends = Pod { deletes_at: Some(jiff::Timestamp::UNIX_EPOCH), ..pod("1", Some("a"), &plain) };
        assert_eq!(open_to(&pod("new", None, &apart()), vec![ends], &nodes), ["b"]);
    }
}
