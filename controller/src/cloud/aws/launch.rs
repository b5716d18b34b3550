//! Launching by CreateFleet: the whole request is made, and its launch templates with it, before capacity is asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use karp_aws::change::Failed;
use karp_aws::fleet::{self, Answer, Choice, Override, Refusal};
use karp_aws::instances;
use karp_aws::launch_template::{Placement, Reservations, Spec};
use karp_aws::placement_groups::PlacementGroup;
use karp_domain::api::{AmiFamily, Ec2NodeClass, NodeClaim, Subnet, conditions, labels, requirements};
use karp_domain::catalogue::CapacityType;
use karp_domain::fleet::NO_ADDRESSES;
use karp_domain::resources;
use karp_domain::taint::Taint;
use karp_domain::user_data::{self, Bootstrap, ClusterFacts};
use kube::ResourceExt;
use serde_json::{Map, Value};

use super::moulds::{self, Mould};
use super::{Aws, BATCH_TAG, CLAIM_TAG, class, failure};
use crate::cloud::{
    CloudError, Instance, LaunchError, LaunchOrder, Launched, Prepared, RESERVATION_FULL, Request, Shared, Template,
    is_dedicated,
};

/// The tag that AWS' console shows as a name.
const NAME_TAG: &str = "Name";

/// EC2 takes this many tags on one thing.
const MOST_TAGS: usize = 50;

/// When a launch looks again whether its node class is resolved.
const RESOLVES: Duration = Duration::from_secs(1);

/// Makes the request, and the launch templates that it names.
pub async fn prepare(aws: &Aws, order: &LaunchOrder<'_>) -> Result<Prepared, LaunchError> {
    let not_ready = |message: &str| LaunchError::NodeClassNotReady(message.to_owned());
    let status = order.class.status.as_ref().ok_or_else(|| not_ready("its selectors are not resolved yet"))?;
    // The claim is stamped with the hash of the spec: launched with an older spec's profile, it would never be found to have drifted.
    let seen = conditions::get(&status.conditions, conditions::READY).and_then(|ready| ready.observed_generation);
    if seen.is_some() && seen != order.class.metadata.generation {
        let message = "the latest change of the node class is not resolved yet".to_owned();
        return Err(CloudError::Retry { after: Some(RESOLVES), message }.into());
    }
    let profile = status.instance_profile.as_deref().ok_or_else(|| not_ready("it has no instance profile"))?;
    let family = class::family(&order.class.spec).map_err(|error| not_ready(&error.to_string()))?;
    let Some(capacity_type) = order.offerings.first().map(|offering| offering.capacity_type) else {
        return Err(LaunchError::InsufficientCapacity {
            offerings: Vec::new(),
            message: "no instance type has an offering that the claim may use".to_owned(),
        });
    };
    let cluster = aws.cluster().await.map_err(CloudError::from)?;
    let subnets = aws.addresses.choose(&status.subnets);
    let pool = order.claim.labels().get(labels::NODE_POOL).map(String::as_str).unwrap_or_default();
    let tags = class::tags(&aws.cluster_name, order.class, pool);
    let placement = aws.placement_group(order.class).await.map_err(CloudError::from)?;
    if placement.is_none() && order.class.spec.placement_group_selector.is_some() {
        return Err(not_ready("its placement group is not there"));
    }
    let placement = placement.map(|group| place(group, order.claim));
    let template = class::template(&order.class.spec, family, placement, aws.clients.region());
    let common = Spec { dedicated: is_dedicated(order.claim), ..template };
    let mut choices = Vec::new();
    let mut templates = BTreeMap::new();
    let tells_pods = aws.settings(&order.class.spec).tells_pods();
    let sorted = moulds::sorted(order, &status.amis, &subnets, &cluster, tells_pods);
    for (Mould { image, reservation, max_pods, prefixes, efa }, overrides) in sorted {
        let user_data = render(family, order.class, order.claim, cluster.clone(), capacity_type, max_pods)
            .map_err(|error| not_ready(&error.to_string()))?;
        let spec = Spec {
            image_id: image.to_owned(),
            instance_profile: profile.to_owned(),
            user_data,
            security_group_ids: status.security_groups.iter().map(|group| group.id.clone()).collect(),
            interface: class::interface(&order.class.spec, &cluster, prefixes, &efa),
            reservations: match (&reservation, &aws.reservations) {
                (Some(taken), _) => Reservations::Only(taken.clone()),
                (None, Some(_)) => Reservations::None,
                (None, None) => Reservations::Any,
            },
            spot: capacity_type == CapacityType::Spot,
            tags: tags.clone(),
            ..common.clone()
        };
        let launch_template = aws.templates.name(&aws.clients, &spec).await.map_err(CloudError::from)?;
        templates.insert(launch_template.clone(), Template { image: image.to_owned(), reservation });
        choices.push(Choice { launch_template, overrides });
    }
    if choices.is_empty() {
        return Err(not_ready("no image and subnet of it fit any type that the claim may be"));
    }
    let shared_tags = tags.clone();
    let mut tags = tags;
    tags.extend(claim_tags(order.class, &order.claim.name_any()));
    let request = fleet::Request {
        client_token: order.token(),
        capacity_type,
        count: 1,
        reservation: templates.values().find_map(|template| template.reservation.clone()),
        choices,
        tags,
        context: order.class.spec.context.clone(),
    };
    let (digest, subnets) = (request.digest(), status.subnets.clone());
    let addresses = addresses(order, &request, cluster.is_ipv6());
    // what is reserved is counted one by one
    let shared = (capacity_type != CapacityType::Reserved)
        .then(|| Shared { alike: request.together("", 1, shared_tags.clone()).digest(), tags: shared_tags });
    Ok(Prepared { digest, request: Request::Fleet { request, templates, subnets, addresses }, shared })
}

/// Returns the tags that say whose an instance is. A class may have a name of its own for all.
pub fn claim_tags(class: &Ec2NodeClass, claim: &str) -> BTreeMap<String, String> {
    let own_name = class.spec.tags.to_map().contains_key(NAME_TAG);
    let name = (!own_name).then(|| (NAME_TAG.to_owned(), claim.to_owned()));
    name.into_iter().chain([(CLAIM_TAG.to_owned(), claim.to_owned())]).collect()
}

/// Says that a class has more tags than fit on an instance beside karp's own: of the class, of the claim, and of the call that launched
/// it together with others.
pub fn excess_of_tags(cluster: &str, class: &Ec2NodeClass) -> Option<String> {
    let listed = class.spec.tags.to_map().len();
    let all = class::tags(cluster, class, "").len() + claim_tags(class, "").len() + 1;
    let room = MOST_TAGS.saturating_sub(all.saturating_sub(listed));
    (listed > room).then(|| {
        format!("spec.tags has {listed} tags: EC2 takes {MOST_TAGS} on an instance, and {room} of them are the class's")
    })
}

/// Reckons how many addresses of its subnet an instance of each type may come to use, as Karpenter does: one for each pod that it takes. Where
/// pods have IPv6 addresses it is the instance's own.
fn addresses(order: &LaunchOrder<'_>, request: &fleet::Request, is_ipv6: bool) -> BTreeMap<String, u32> {
    let each = request.choices.iter().flat_map(|choice| &choice.overrides);
    let pods = |kind: &str| {
        let pods = order.catalogue.get(kind).map(|kind| kind.capacity.get(resources::PODS).units());
        pods.filter(|_| !is_ipv6).and_then(|pods| u32::try_from(pods).ok()).unwrap_or(0).max(1)
    };
    each.map(|one| (one.instance_type.clone(), pods(&one.instance_type))).collect()
}

/// Reads what came of a request.
pub fn read(
    aws: &Aws,
    request: &fleet::Request,
    templates: &BTreeMap<String, Template>,
    subnets: &[Subnet],
    answer: Result<Answer, Failed>,
) -> Result<Launched, LaunchError> {
    let refused_of = |refusal: &Refusal| {
        let template = origin(request, templates, &refusal.instance_type, &refusal.zone)?;
        template.reservation.as_ref().map(|taken| taken.id.clone())
    };
    let has_room = |zone: &str| aws.addresses.has_room(zone, subnets);
    let answer = match answer {
        Ok(answer) => answer,
        Err(failed) => {
            let error = &failed.error;
            if error.is_not_found() {
                // A template that was deleted behind our back is made again by the next try.
                aws.templates.doubt(templates.keys());
            }
            if let (Some(RESERVATION_FULL), Some(taken), Some(known)) =
                (error.code(), &request.reservation, &aws.reservations)
            {
                known.full(&taken.id);
            }
            let refused = failure::of_all(error, request);
            aws.note_full(&refused);
            return Err(failure::call_failed(failed, failure::unavailable(&refused, refused_of, has_room)));
        }
    };
    aws.note_full(&answer.refused);
    for refusal in answer.refused.iter().filter(|refusal| refusal.code == RESERVATION_FULL) {
        if let (Some(id), Some(reservations)) = (refused_of(refusal), &aws.reservations) {
            reservations.full(&id);
        }
    }
    let short = (answer.launched.len() < request.count as usize).then(|| {
        if let Some(elsewhere) = failure::elsewhere(&answer.refused, has_room) {
            return elsewhere;
        }
        if answer.refused.iter().any(|refusal| refusal.code.starts_with("InvalidLaunchTemplate")) {
            aws.templates.doubt(templates.keys());
        }
        let unmet = Answer { launched: Vec::new(), ..answer.clone() };
        failure::nothing_launched(&unmet, refused_of, has_room)
    });
    let mut instances = answer.launched.iter().map(|one| instance(aws, request, templates, one));
    match (instances.next(), short) {
        (Some(instance), short) => {
            let refused = failure::unavailable(&answer.refused, refused_of, has_room);
            Ok(Launched { instance, others: instances.collect(), refused, short })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(failure::nothing_launched(&answer, refused_of, has_room)),
    }
}

/// Tells what was launched.
fn instance(
    aws: &Aws,
    request: &fleet::Request,
    templates: &BTreeMap<String, Template>,
    launched: &fleet::Launched,
) -> Instance {
    let template = origin(request, templates, &launched.instance_type, &launched.zone);
    let reservation = template.and_then(|template| template.reservation.clone());
    if let (Some(taken), Some(reservations)) = (&reservation, &aws.reservations) {
        reservations.took(&taken.id, &launched.instance_id);
    }
    Instance {
        provider_id: instances::provider_id(&launched.zone, &launched.instance_id),
        instance_type: launched.instance_type.clone(),
        zone: launched.zone.clone(),
        capacity_type: launched.capacity_type,
        reservation,
        // EC2 chooses it, and tells when asked for the instance
        partition: None,
        image_id: template.map(|template| template.image.clone()).unwrap_or_default(),
        ending: false,
        launched_at: None,
        claim: request.tags.get(CLAIM_TAG).cloned(),
        batch: request.tags.get(BATCH_TAG).cloned(),
    }
}

impl Aws {
    /// Notes the subnets that have no address left.
    fn note_full(&self, refused: &[Refusal]) {
        for refusal in refused.iter().filter(|refusal| refusal.code == NO_ADDRESSES) {
            self.addresses.ran_out(&refusal.subnet_id);
        }
    }
}

/// Says where in the group a claim's instance goes. EC2 can be told one partition or none: a claim that may not be in all of them gets the
/// first that it may be in.
fn place(group: PlacementGroup, claim: &NodeClaim) -> Placement {
    let wanted = requirements(&claim.spec.requirements).unwrap_or_default();
    let admits = |number: &i32| wanted.admits(labels::PLACEMENT_GROUP_PARTITION, &number.to_string());
    let free = (1..=group.partitions).all(|number| admits(&number));
    let partition = if free { None } else { (1..=group.partitions).find(admits) };
    Placement { group: group.id, partition }
}

/// Finds the launch template of a type in a zone. EC2 may leave the zone out: then there is none where several reservations may be meant.
fn origin<'t>(
    request: &fleet::Request,
    templates: &'t BTreeMap<String, Template>,
    instance_type: &str,
    zone: &str,
) -> Option<&'t Template> {
    let is = |one: &Override| one.instance_type == instance_type && (zone.is_empty() || one.zone == zone);
    let mut fitting = request.choices.iter().filter(|choice| choice.overrides.iter().any(is));
    let first = templates.get(&fitting.next()?.launch_template)?;
    let same =
        |choice: &Choice| templates.get(&choice.launch_template).is_some_and(|t| t.reservation == first.reservation);
    fitting.all(same).then_some(first)
}

/// Renders the user data; `max_pods` is what the kubelet is told beside the class's own settings. Launch templates are shared by claims that
/// are labelled alike, so nothing of a single claim goes in.
pub fn render(
    family: AmiFamily,
    class: &Ec2NodeClass,
    claim: &NodeClaim,
    cluster: ClusterFacts,
    capacity_type: CapacityType,
    max_pods: Option<i64>,
) -> Result<String, user_data::Error> {
    let mut node_labels = claim.labels().clone();
    node_labels.insert(labels::CAPACITY_TYPE.to_owned(), capacity_type.to_string());
    let own = claim.spec.taints.iter().chain(&claim.spec.startup_taints);
    let taints = own.map(|taint| Taint::new(&taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect));
    let mut kubelet = kubelet(class);
    if let Some(pods) = max_pods {
        kubelet.insert("maxPods".to_owned(), pods.into());
    }
    user_data::render(
        family,
        &Bootstrap {
            cluster,
            labels: node_labels,
            taints: taints.collect(),
            kubelet,
            raid0: class.spec.instance_store_policy.is_some(),
            custom: class.spec.user_data.clone(),
        },
    )
}

fn kubelet(class: &Ec2NodeClass) -> Map<String, Value> {
    match class.spec.kubelet.as_ref().map(serde_json::to_value) {
        Some(Ok(Value::Object(settings))) => settings,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::RequirementSpec;
    use karp_domain::requirement::Operator;

    use super::*;

    #[test]
    fn a_class_has_no_more_tags_than_fit_beside_those_of_a_launch() {
        let excess = |count: usize, named: bool| {
            let numbered = (0..count).map(|number| (format!("team-{number}"), "a".to_owned()));
            let own_name = named.then(|| (NAME_TAG.to_owned(), "a".to_owned()));
            let tags: BTreeMap<String, String> = numbered.chain(own_name).collect();
            let spec = serde_json::json!({ "tags": tags, "amiSelectorTerms": [], "subnetSelectorTerms": [],
                "securityGroupSelectorTerms": [] });
            let class = Ec2NodeClass::new("c", serde_json::from_value(spec).expect("a spec"));
            excess_of_tags("alpha", &class)
        };
        assert_eq!((excess(43, false), excess(43, true)), (None, None), "a name of its own takes the place of karp's");
        let message = excess(44, false).expect("one too many");
        assert_eq!(message, "spec.tags has 44 tags: EC2 takes 50 on an instance, and 43 of them are the class's");
    }

    #[test]
    fn a_claim_that_may_not_be_in_every_partition_names_one() {
        let partition = |operator: Operator, values: &[&str]| {
            let mut claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
            claim.spec.requirements = vec![RequirementSpec {
                key: labels::PLACEMENT_GROUP_PARTITION.to_owned(),
                operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
                min_values: None,
            }];
            let group = PlacementGroup {
                id: "pg-1".into(),
                name: "g".into(),
                strategy: "partition".into(),
                partitions: 3,
                available: true,
            };
            place(group, &claim).partition
        };
        assert_eq!(partition(Operator::In, &["1", "2", "3"]), None);
        assert_eq!(partition(Operator::Exists, &[]), None, "EC2 chooses");
        assert_eq!(partition(Operator::In, &["3"]), Some(3));
        assert_eq!(partition(Operator::NotIn, &["1"]), Some(2));
    }
}
