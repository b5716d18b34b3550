//! The AWS clients of one region, with the questions that they share.

use std::sync::Arc;

use aws_sdk_eventbridge::Client as EventBridge;
use aws_sdk_iam::Client as Iam;
use karp_aws::config::{Clients, Service};

use super::reads::{Forgetting, Reads};

/// The AWS clients of one region; cheap to clone.
#[derive(Clone)]
pub struct Aws {
    clients: Clients,
    ec2: aws_sdk_ec2::Client,
    iam: Iam,
    events: EventBridge,
    reads: Arc<Reads>,
}

impl Aws {
    /// Makes the clients that only the provider has, and has those that change what is read together forget it then.
    pub fn new(clients: Clients) -> Self {
        let (ec2, iam) = (clients.ec2(), clients.iam());
        let events = EventBridge::new(&clients.config_for(Service::EventBridge));
        let reads = Arc::new(Reads::new(ec2, &events, iam));
        let forgetting = || Forgetting(Arc::clone(&reads));
        let ec2 = ec2.config().to_builder().interceptor(forgetting()).build();
        let iam = iam.config().to_builder().interceptor(forgetting()).build();
        let events = events.config().to_builder().interceptor(forgetting()).build();
        Self {
            ec2: aws_sdk_ec2::Client::from_conf(ec2),
            iam: Iam::from_conf(iam),
            events: EventBridge::from_conf(events),
            clients,
            reads,
        }
    }

    /// Returns the clients that provider and controller share.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns what a refresh asks together with others.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Returns the IAM client.
    pub fn iam(&self) -> &Iam {
        &self.iam
    }

    /// Returns the EventBridge client.
    pub fn events(&self) -> &EventBridge {
        &self.events
    }

    /// Returns the EC2 client.
    pub fn ec2(&self) -> &aws_sdk_ec2::Client {
        &self.ec2
    }

    /// Returns the EKS client.
    pub fn eks(&self) -> &aws_sdk_eks::Client {
        self.clients.eks()
    }

    /// Returns the SQS client.
    pub fn sqs(&self) -> &aws_sdk_sqs::Client {
        self.clients.sqs()
    }

    /// Returns the region of all calls.
    pub fn region(&self) -> &str {
        self.clients.region()
    }
}
