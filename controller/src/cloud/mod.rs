//! Where instances come from: what the reconcilers ask of a cloud, in plain values.

pub mod aws;
pub mod simulated;
mod store;
mod unavailable;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karp_aws::capacity_reservations::Taken;
use karp_aws::instances::BATCH_TAG;
use karp_aws::pace::Token;
use karp_domain::api::{Ami, CapacityReservation, Ec2NodeClass, NodeClaim, SecurityGroup, Subnet, requirements};
use karp_domain::catalogue::{CapacityType, Catalogue, RankedOffering, Tenancy};
use karp_domain::fleet::UnavailableOffering;
use karp_domain::interruption::Health;
use karp_domain::lifecycle::{is_gone_if_unknown, launch};

#[cfg(test)]
use store::fake;
pub use store::{KEPT, Kept, Store};
pub use unavailable::{Capacity, Unavailable};

/// Gives, lists and ends instances. Every call may be repeated: a repeated launch gives the same instance.
#[async_trait]
pub trait CloudProvider: Send + Sync + 'static {
    /// Names the provider in metrics.
    fn name(&self) -> &'static str;

    /// Returns the instance types, offerings and prices that a node class can use. Cached by the provider; when a refresh
    /// fails, the last good answer stands.
    async fn catalogue(&self, class: &Ec2NodeClass) -> Result<Arc<Catalogue>, CloudError>;

    /// Returns when the prices of each kind were read; nothing of kinds that never were, or where none are read.
    fn prices_read(&self) -> BTreeMap<CapacityType, Timestamp> {
        BTreeMap::new()
    }

    /// Returns how many bytes the user data of each class has that was rendered last, by the class's name.
    fn user_data_bytes(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }

    /// Makes a launch ready without asking for capacity (launch templates are made here): the whole request, and a digest of
    /// it that is written to the claim before [`Self::launch`].
    async fn prepare(&self, order: &LaunchOrder<'_>) -> Result<Prepared, LaunchError>;

    /// Takes the right to one launch, if the cloud's rate leaves one now.
    fn turn(&self) -> Option<Token> {
        Some(Token::free())
    }

    /// Waits for the right to one launch; who asked earlier has it earlier.
    async fn await_turn(&self) -> Token {
        Token::free()
    }

    /// Asks for the instance, or for those of a batch. The same order with the same attempt gives the same instance.
    async fn launch(&self, prepared: &Prepared, turn: Token) -> Result<Launched, LaunchError>;

    /// Finds the live instances that were launched for a claim, by tag.
    async fn find(&self, claim: &NodeClaim) -> Result<Vec<Instance>, CloudError>;

    /// Finds the live instances that a batch launched, by tag; none in a cloud that launches none together.
    async fn find_batch(&self, _batch: &str) -> Result<Vec<Instance>, CloudError> {
        Ok(Vec::new())
    }

    /// Tags an instance of a batch, and what was launched with it, as those of this claim.
    async fn tell_claim(
        &self,
        _provider_id: &str,
        _claim: &NodeClaim,
        _class: &Ec2NodeClass,
    ) -> Result<Told, CloudError> {
        Ok(Told::Done)
    }

    /// Looks one instance up.
    async fn get(&self, provider_id: &str) -> Result<Presence, CloudError>;

    /// Lists this cluster's instances, ending ones included. An answer is whole or an error.
    async fn list(&self) -> Result<Vec<Instance>, CloudError>;

    /// Asks that an instance ends; returns whether it is known to be gone.
    async fn terminate(&self, provider_id: &str) -> Result<Termination, CloudError>;

    /// Looks up what a node class selects.
    async fn resolve(&self, class: &Ec2NodeClass) -> Result<Resolved, CloudError>;

    /// Returns annotations by which a node class is known later to be one for which something was made: they are written before its status changes.
    fn marks(&self, _class: &Ec2NodeClass) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Takes away what was made for a node class (launch templates).
    async fn release(&self, class: &Ec2NodeClass) -> Result<(), CloudError>;

    /// Says why an instance no longer is what its class asks for; `None` when it is.
    async fn drift(&self, claim: &NodeClaim, class: &Ec2NodeClass) -> Result<Option<String>, CloudError>;

    /// Notes the memory in bytes that a node of this type and image has; nothing to a provider that knows it anyway.
    async fn note_memory(&self, _instance_type: &str, _image: &str, _bytes: u64) {}

    /// Returns how many instances the capacity reservations have left that classes select, by id.
    fn reservations(&self) -> BTreeMap<String, u32> {
        BTreeMap::new()
    }

    /// Lists instances, also those of others, that are not well or for which something is planned; none in a cloud where all are.
    async fn unwell(&self) -> Result<Vec<Health>, CloudError> {
        Ok(Vec::new())
    }

    /// Waits a while for interruption messages; `None` when there is no queue.
    async fn receive(&self) -> Result<Option<Vec<QueueMessage>>, CloudError>;

    /// Deletes handled messages from the queue.
    async fn delete_messages(&self, receipts: &[String]) -> Result<(), CloudError>;
}

/// Says whether a claim's instance needs hardware that nobody else uses: it may not share any.
pub fn is_dedicated(claim: &NodeClaim) -> bool {
    requirements(&claim.spec.requirements).is_ok_and(|wanted| Tenancy::of(&wanted) == Tenancy::Dedicated)
}

/// What a launch is asked with.
#[derive(Clone, Debug)]
pub struct LaunchOrder<'a> {
    /// The claim: its uid and the attempt make the client token.
    pub claim: &'a NodeClaim,
    /// Its class, resolved.
    pub class: &'a Ec2NodeClass,
    /// Advanced only after a definite answer.
    pub attempt: u32,
    /// What may be launched, cheapest first; never empty, one capacity type or several.
    pub offerings: &'a [RankedOffering],
    /// The types that the offerings are of.
    pub catalogue: &'a Catalogue,
}

impl LaunchOrder<'_> {
    /// Returns the client token: EC2 compares the whole request under it.
    pub fn token(&self) -> String {
        launch::token(self.claim.metadata.uid.as_deref().unwrap_or_default(), self.attempt)
    }
}

/// Holds a launch that is ready to be asked for.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Digest of the whole request.
    pub digest: String,
    /// The request.
    pub request: Request,
    /// The same request for any number of claims; absent where each must be asked for by itself.
    pub shared: Option<Shared>,
}

/// Holds what claims that ask for the same have in common.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Digest of all that makes them ask for the same.
    pub alike: String,
    /// Tags of the instances, without those that name a claim.
    tags: BTreeMap<String, String>,
}

impl Prepared {
    /// Makes one request for many claims that ask for the same.
    pub fn together(&self, batch: &str, count: u32) -> Self {
        let (Request::Fleet { request, templates, subnets, addresses }, Some(shared)) = (&self.request, &self.shared)
        else {
            return self.clone();
        };
        let mut tags = shared.tags.clone();
        tags.insert(BATCH_TAG.to_owned(), batch.to_owned());
        let request = request.together(batch, count, tags);
        let (digest, templates, subnets) = (request.digest(), templates.clone(), subnets.clone());
        let request = Request::Fleet { request, templates, subnets, addresses: addresses.clone() };
        Self { digest, request, shared: None }
    }
}

/// Holds a request in the words of its provider.
#[derive(Clone, Debug)]
pub enum Request {
    /// CreateFleet, with the launch templates by name.
    Fleet {
        /// The call.
        request: karp_aws::fleet::Request,
        /// What instances of each launch template are.
        templates: BTreeMap<String, Template>,
        /// The subnets of the class: more than the call names.
        subnets: Vec<Subnet>,
        /// How many addresses of its subnet an instance of each type may come to use.
        addresses: BTreeMap<String, u32>,
    },
    /// A Node object to be made.
    Simulated {
        /// The object.
        node: Box<Node>,
    },
}

/// Says what instances of a launch template have that answers to launches do not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Machine image.
    pub image: String,
    /// The capacity reservation that they take.
    pub reservation: Option<Taken>,
}

/// Describes an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// `aws:///ZONE/ID`
    pub provider_id: String,
    /// Type.
    pub instance_type: String,
    /// Zone.
    pub zone: String,
    /// How it was bought.
    pub capacity_type: CapacityType,
    /// The capacity reservation that it takes its capacity from.
    pub reservation: Option<Taken>,
    /// The partition of its placement group, where it has one and the cloud tells it.
    pub partition: Option<i32>,
    /// Machine image.
    pub image_id: String,
    /// It has ended or will end whatever happens.
    pub ending: bool,
    /// When it was launched, by the cloud's clock.
    pub launched_at: Option<Timestamp>,
    /// Name of its claim, from its tag.
    pub claim: Option<String>,
    /// The batch that it was launched with, from its tag.
    pub batch: Option<String>,
}

/// Answers a launch: the instances, and what could not be had on the way.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The first instance: all that is asked for unless it is for a batch.
    pub instance: Instance,
    /// The others, of a batch.
    pub others: Vec<Instance>,
    /// Offerings that were refused before.
    pub refused: Vec<UnavailableOffering>,
    /// Why there are not as many as were asked for.
    pub short: Option<LaunchError>,
}

/// EC2's word for a capacity reservation that has no instance left.
pub const RESERVATION_FULL: &str = "ReservationCapacityExceeded";

/// Says whether there is an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There is; it may be on its way out.
    Exists(Box<Instance>),
    /// The cloud does not know it: it is gone, or was launched a moment ago.
    Unknown,
    /// It has ended.
    Gone,
}

impl Presence {
    /// Returns the instance, if there is one.
    pub fn instance(self) -> Option<Instance> {
        match self {
            Self::Exists(instance) => Some(*instance),
            Self::Unknown | Self::Gone => None,
        }
    }

    /// Says whether nothing of an instance runs or will; `launched` says when it was.
    pub fn is_over(&self, launched: Option<Timestamp>, now: Timestamp) -> bool {
        match self {
            Self::Exists(_) => false,
            Self::Unknown => is_gone_if_unknown(launched, now),
            Self::Gone => true,
        }
    }
}

/// Says whether an instance of a batch was told whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was, or ends.
    Done,
    /// It is too young: not all of it is there yet.
    TooYoung,
}

/// Says how far an instance's end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// It ends; ask again.
    InProgress,
    /// The cloud does not know it: it is gone, or was launched a moment ago.
    Unknown,
    /// It is known to be gone.
    Gone,
}

impl Termination {
    /// Says whether nothing of an instance runs or will; `launched` says when it was.
    pub fn is_over(self, launched: Option<Timestamp>, now: Timestamp) -> bool {
        match self {
            Self::InProgress => false,
            Self::Unknown => is_gone_if_unknown(launched, now),
            Self::Gone => true,
        }
    }
}

/// Holds what a node class selects, and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// Subnets.
    pub subnets: Vec<Subnet>,
    /// Security groups.
    pub security_groups: Vec<SecurityGroup>,
    /// Images with the requirements of the nodes that they fit.
    pub amis: Vec<Ami>,
    /// Capacity reservations; absent where the class asks for none.
    pub capacity_reservations: Option<Vec<CapacityReservation>>,
    /// Instance profile.
    pub instance_profile: Option<String>,
    /// Conditions that do not hold; all others do.
    pub problems: Vec<Problem>,
    /// What to say of a condition that holds.
    pub remark: Option<Problem>,
    /// Look again so soon: something that was just made is not yet seen everywhere.
    pub look_again: Option<Duration>,
    /// Annotations of the class that tell of what is gone.
    pub outdated: Vec<&'static str>,
}

/// Says which condition of a node class does not hold, and why; or what is to be known of one that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Condition type.
    pub condition: &'static str,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

/// A message of the interruption queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMessage {
    /// The queue's name for it, the same each time that it comes.
    pub id: String,
    /// What deletes it.
    pub receipt: String,
    /// An EventBridge event in JSON, if all is well.
    pub body: String,
}

/// Reports a failed call, by what to do next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloudError {
    /// Try again, after a while.
    #[error("{message}")]
    Retry {
        /// How long to wait; the caller's backoff when not said.
        after: Option<Duration>,
        /// What happened.
        message: String,
    },
    /// Trying again changes nothing before somebody changes the spec, the rights or the account.
    #[error("{message}")]
    Refused {
        /// One word for metrics and conditions.
        reason: String,
        /// What happened.
        message: String,
    },
}

/// Reports a launch that gave nothing, by what to do next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LaunchError {
    /// No capacity: remember the offerings, give the claim up and solve again.
    #[error("insufficient capacity: {message}")]
    InsufficientCapacity {
        /// What could not be had.
        offerings: Vec<UnavailableOffering>,
        /// What happened.
        message: String,
    },
    /// The node class cannot be used now: give the claim up and solve again.
    #[error("node class is not ready: {0}")]
    NodeClassNotReady(String),
    /// The token was used with another request: look for the instance by tag and adopt it.
    #[error("the client token was used for another request: {0}")]
    TokenReused(String),
    /// Nothing, for a reason that stays or that the cloud keeps to itself: this is the whole answer, kept under the token, so that the next
    /// try, after a while, needs another one.
    #[error("{message}")]
    Denied {
        /// One word for metrics and conditions.
        reason: String,
        /// What happened.
        message: String,
    },
    /// Nothing of it, but the next attempt is made elsewhere: make it at once.
    #[error("{0}")]
    Elsewhere(String),
    /// The call failed, and nobody knows whether it launched anything: under its token it can be repeated.
    #[error("{0}")]
    InDoubt(CloudError),
    /// Anything else.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

impl CloudError {
    /// Returns one word for metrics.
    pub fn reason(&self) -> &str {
        match self {
            Self::Retry { .. } => "Retry",
            Self::Refused { reason, .. } => reason,
        }
    }
}
