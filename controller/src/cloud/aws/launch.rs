//! Launching by CreateFleet: the whole request is made, and its launch templates with it, before capacity is asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use karp_aws::capacity_reservations::Taken;
use karp_aws::change::Failed;
use karp_aws::fleet::{self, Answer, Choice, Override, Refusal};
use karp_aws::instances;
use karp_aws::launch_template::{Placement, Reservations, Spec};
use karp_aws::placement_groups::PlacementGroup;
use karp_domain::api::{Ami, AmiFamily, Ec2NodeClass, NodeClaim, Subnet, conditions, labels, requirements};
use karp_domain::catalogue::{
    CapacityType, Catalogue, Price, PriceSource, RankedOffering, Reservation, ReservationKind,
};
use karp_domain::fleet::NO_ADDRESSES;
use karp_domain::resources;
use karp_domain::taint::Taint;
use karp_domain::user_data::{self, Bootstrap, ClusterFacts};
use kube::ResourceExt;
use serde_json::{Map, Value};

use super::{Aws, BATCH_TAG, CLAIM_TAG, class, failure};
use crate::cloud::{
    CloudError, Instance, LaunchError, LaunchOrder, Launched, Prepared, RESERVATION_FULL, Request, Shared, Template,
    is_dedicated,
};

/// The tag that AWS' console shows as a name.
const NAME_TAG: &str = "Name";

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
    let sorted = sorted(order, &status.amis, &subnets, &cluster, tells_pods);
    for (Mould { image, reservation, max_pods, prefixes, efa }, overrides) in sorted {
        let user_data = render(family, order.class, order.claim, cluster.clone(), capacity_type, max_pods)
            .map_err(|error| not_ready(&error.to_string()))?;
        let spec = Spec {
            image_id: image.to_owned(),
            instance_profile: profile.to_owned(),
            user_data,
            security_group_ids: status.security_groups.iter().map(|group| group.id.clone()).collect(),
            interface: class::interface(&order.class.spec, &cluster, prefixes, efa),
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

/// What instances must have in common to come of one launch template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mould<'a> {
    image: &'a str,
    /// The capacity reservation that they take.
    reservation: Option<Taken>,
    /// How many pods the kubelet is told to take, where it must be told.
    max_pods: Option<i64>,
    /// Whether the interface is given prefixes.
    prefixes: bool,
    /// EFA interfaces, where pods ask for any.
    efa: i32,
}

/// Sorts the offerings of the first one's capacity type by the template that they need; EC2's bounds on templates and overrides cut the dearest.
fn sorted<'a>(
    order: &LaunchOrder<'_>,
    images: &'a [Ami],
    subnets: &BTreeMap<String, Subnet>,
    cluster: &ClusterFacts,
    tells_pods: bool,
) -> BTreeMap<Mould<'a>, Vec<Override>> {
    let mut sorted: BTreeMap<Mould<'_>, Vec<Override>> = BTreeMap::new();
    let wants_efa = order.claim.spec.resources.requests.contains(resources::AWS_EFA);
    let alike = bought_alike(order);
    // EC2 knows nothing of prices that are the operator's own
    let own_prices = alike.iter().any(|(offering, _)| offering.source == PriceSource::Overlaid);
    let mut prices: Vec<Price> = alike.iter().map(|(offering, _)| offering.price).collect();
    prices.dedup();
    for (offering, reservation) in alike.into_iter().take(fleet::MAX_OVERRIDES) {
        let Some(subnet) = subnets.get(&*offering.zone.name) else { continue };
        let Some(kind) = order.catalogue.get(&offering.instance_type) else { continue };
        let Some(image) = class::image_of(images, kind) else { continue };
        let pods = kind.capacity.get(resources::PODS).units();
        let prefixes = class::takes_prefixes(&order.class.spec, cluster, kind);
        let efa = if wants_efa { kind.capacity.get(resources::AWS_EFA).units() } else { 0 };
        let efa = i32::try_from(efa).unwrap_or(i32::MAX);
        let mould = Mould { image: &image.id, reservation, max_pods: tells_pods.then_some(pods), prefixes, efa };
        if sorted.len() == fleet::MAX_TEMPLATES && !sorted.contains_key(&mould) {
            continue;
        }
        sorted.entry(mould).or_default().push(Override {
            instance_type: offering.instance_type.to_string(),
            subnet_id: subnet.id.clone(),
            zone: subnet.zone.clone(),
            priority: own_prices.then(|| prices.partition_point(|price| *price < offering.price) as u32),
        });
    }
    sorted
}

/// Returns the offerings that one request can ask for together with the first: bought the same way and, where that is by reservation, of
/// its kind, for each type and zone the one with the most room; of blocks the first alone (EC2's bound).
fn bought_alike<'o>(order: &LaunchOrder<'o>) -> Vec<(&'o RankedOffering, Option<Taken>)> {
    let Some(first) = order.offerings.first() else { return Vec::new() };
    let alike = order.offerings.iter().filter(|one| one.capacity_type == first.capacity_type);
    if first.capacity_type != CapacityType::Reserved {
        return alike.map(|offering| (offering, None)).collect();
    }
    let mut held: Vec<(&RankedOffering, &Reservation)> =
        alike.filter_map(|one| Some((one, reservation(order.catalogue, one)?))).collect();
    let Some((_, Reservation { kind, interruptible, .. })) = held.first().copied() else { return Vec::new() };
    held.retain(|(_, other)| (other.kind, other.interruptible) == (*kind, *interruptible));
    if *kind == ReservationKind::CapacityBlock {
        held.truncate(1);
    }
    let place = |one: &RankedOffering| (one.instance_type.clone(), one.zone.clone());
    let roomier = |(one, reservation): &(&RankedOffering, &Reservation)| {
        let mut others = held.iter().filter(|(other, _)| place(other) == place(one));
        others.all(|(_, other)| (other.remaining, &reservation.id) <= (reservation.remaining, &other.id))
    };
    let best = held.iter().filter(|one| roomier(one));
    let taken =
        |held: &Reservation| Taken { id: held.id.to_string(), kind: held.kind, interruptible: held.interruptible };
    best.map(|(offering, reservation)| (*offering, Some(taken(reservation)))).collect()
}

/// The capacity reservation behind an offering.
fn reservation<'c>(catalogue: &'c Catalogue, offering: &RankedOffering) -> Option<&'c Reservation> {
    catalogue.reservation(offering.reservation.as_ref()?)?.reservation.as_ref()
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
    use karp_domain::api::{AmiRequirement, RequirementSpec};
    use karp_domain::catalogue::{
        CapacityReservation, InstanceFacts, InstanceType, NodeSettings, Price, PriceSource, Zone, builtin,
        builtin_type, overhead, reserved_offerings,
    };
    use karp_domain::requirement::Operator;

    use super::*;

    fn image(id: &str, arch: &str) -> Ami {
        let requirement =
            AmiRequirement { key: labels::ARCH.to_owned(), operator: Operator::In, values: vec![arch.to_owned()] };
        Ami { id: id.to_owned(), requirements: vec![requirement], ..Ami::default() }
    }

    fn offering(kind: &str, zone: &str, capacity_type: CapacityType) -> RankedOffering {
        RankedOffering {
            instance_type: kind.into(),
            zone: Zone::new(zone, ""),
            capacity_type,
            price: Price::from_micro_dollars(1),
            source: PriceSource::Published,
            reservation: None,
        }
    }

    #[test]
    fn each_architecture_gets_its_own_template_and_one_subnet_a_zone() {
        let images = [image("ami-amd", "amd64"), image("ami-arm", "arm64")];
        let subnet = |id: &str, zone: &str| Subnet { id: id.to_owned(), zone: zone.to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet("subnet-a", "a"))]);
        let spot = CapacityType::Spot;
        let offerings = [
            offering("m7g.large", "a", spot),
            offering("m7i.large", "a", spot),
            offering("m7i.large", "b", spot),
            offering("m7i.large", "a", CapacityType::OnDemand),
        ];
        let sorted = sorted_by(&offerings, &images, &subnets, &NodeSettings::default());
        assert_eq!(sorted.keys().map(|mould| mould.image).collect::<Vec<_>>(), ["ami-amd", "ami-arm"]);
        let [amd, _] = sorted.values().collect::<Vec<_>>()[..] else { panic!("two templates") };
        assert_eq!(amd.len(), 1, "no subnet in zone b, and one capacity type a request");
        assert_eq!(amd[0].subnet_id, "subnet-a");
    }

    fn sorted_by<'a>(
        offerings: &[RankedOffering],
        images: &'a [Ami],
        subnets: &BTreeMap<String, Subnet>,
        settings: &NodeSettings,
    ) -> BTreeMap<Mould<'a>, Vec<Override>> {
        let claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
        let mut class = Ec2NodeClass::new("c", karp_domain::api::Ec2NodeClassSpec::default());
        class.spec.ip_prefix_count = i32::try_from(settings.ip_prefix_count).ok();
        let facts = offerings.iter().filter_map(|o| builtin_type(&o.instance_type));
        let catalogue = Catalogue::estimated(facts, &[], settings);
        let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings, catalogue: &catalogue };
        sorted(&order, images, subnets, &ClusterFacts::default(), settings.tells_pods())
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

    #[test]
    fn a_request_takes_reservations_of_one_kind_and_one_for_each_place() {
        let zones = [Zone::new("a", ""), Zone::new("b", "")];
        let held = |id: &str, kind, zone: &str, remaining| CapacityReservation {
            instance_type: "m7i.large".into(),
            zone: zone.into(),
            reservation: Reservation {
                id: id.into(),
                kind,
                interruptible: false,
                tenancy: Default::default(),
                remaining,
            },
            expiring: false,
        };
        let request = |reservations: &[CapacityReservation]| {
            let facts = builtin_type("m7i.large").expect("a type");
            let sold = reserved_offerings("m7i.large", &zones, reservations, Price::from_micro_dollars(100_800));
            let catalogue = Catalogue::new(vec![InstanceType::from_facts(facts, &NodeSettings::default(), sold)]);
            let (types, market) = catalogue.select(&Default::default());
            let offerings = catalogue.ranked(&types, market);
            let claim = NodeClaim::new("c", karp_domain::api::NodeClaimSpec::default());
            let class = Ec2NodeClass::new("c", karp_domain::api::Ec2NodeClassSpec::default());
            let order =
                LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
            let ids = bought_alike(&order).into_iter().filter_map(|(_, taken)| taken).map(|taken| taken.id);
            ids.collect::<Vec<_>>()
        };
        use ReservationKind::{CapacityBlock, Default as Plain};
        let plain = [held("cr-1", Plain, "a", 1), held("cr-2", Plain, "a", 5), held("cr-3", Plain, "b", 2)];
        assert_eq!(request(&plain), ["cr-2", "cr-3"], "the roomiest of each zone");
        let blocks = [held("cr-1", CapacityBlock, "a", 1), held("cr-2", CapacityBlock, "b", 3)];
        assert_eq!(request(&blocks), ["cr-1"]);
        assert_eq!(request(&[&plain[..1], &blocks[1..]].concat()), ["cr-1"], "never of two kinds");
        let even = [held("cr-1", Plain, "a", 2), held("cr-2", Plain, "a", 2)];
        assert_eq!(request(&even), ["cr-1"]);
    }

    #[test]
    fn a_request_names_no_more_templates_than_ec2_takes() {
        let images = [image("ami-amd", "amd64"), image("ami-arm", "arm64")];
        let subnet = Subnet { id: "subnet-a".to_owned(), zone: "a".to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet)]);
        let settings = NodeSettings { reserved_enis: 1, ..NodeSettings::default() };
        let told = |facts: &'static InstanceFacts| ((facts.arch, overhead::max_pods(facts, &settings)), facts);
        let kinds: BTreeMap<_, _> = builtin().iter().map(told).collect();
        assert!(
            kinds.len() > fleet::MAX_TEMPLATES,
            "each of these is told another number of pods, or has another image"
        );
        let offerings: Vec<_> =
            kinds.values().map(|facts| offering(&facts.name, "a", CapacityType::OnDemand)).collect();
        let sorted = sorted_by(&offerings, &images, &subnets, &settings);
        let first = sorted.values().flatten().any(|one| one.instance_type == *offerings[0].instance_type);
        assert_eq!((sorted.len(), first), (fleet::MAX_TEMPLATES, true), "the best ones stay");
    }

    #[test]
    fn kubelets_are_told_their_pods_where_images_reckon_otherwise() {
        let images = [image("ami-amd", "amd64")];
        let subnet = Subnet { id: "subnet-a".to_owned(), zone: "a".to_owned(), zone_id: None };
        let subnets = BTreeMap::from([("a".to_owned(), subnet)]);
        let offerings = ["m7i.large", "m7i.xlarge", "m7i.16xlarge", "m4.large"]
            .map(|kind| offering(kind, "a", CapacityType::OnDemand));
        let pods = |settings: NodeSettings| {
            let sorted = sorted_by(&offerings, &images, &subnets, &settings);
            sorted.into_keys().map(|mould| (mould.max_pods, mould.prefixes)).collect::<Vec<_>>()
        };
        assert_eq!(pods(NodeSettings::default()), [(None, false)]);
        let prefixes = NodeSettings { ip_prefix_count: 1, ..NodeSettings::default() };
        assert_eq!(pods(prefixes.clone()), [(Some(20), false), (Some(110), true), (Some(250), true)]);
        assert_eq!(pods(NodeSettings { max_pods: Some(58), ..prefixes }), [(None, false), (None, true)]);
        let reserved = NodeSettings { reserved_enis: 1, ..NodeSettings::default() };
        assert_eq!(pods(reserved)[0], (Some(11), false), "m4.large: one interface of ten addresses");
    }
}
