//! The mark of [`crate::marks`] as a tag of AWS objects: put on with the creation, known again, taken off.

use std::collections::BTreeSet;

use super::Origin;
use super::tags::{CLUSTER_KEY, Change, IamObject, Tags, retag_eks, retag_queue};
use crate::marks::{Mark, UNFINISHED};
use crate::report::Failure;
use crate::session::Aws;

/// An object that was made with a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// An object of IAM.
    Iam(IamObject),
    /// A queue, by URL.
    Queue(String),
    /// Any object of EKS, by ARN.
    Eks(String),
}

impl Marked {
    /// Takes the mark off.
    pub async fn unmark(&self, aws: &Aws) -> Result<(), Failure> {
        let change = Change { put: Tags::new(), remove: BTreeSet::from([UNFINISHED.to_owned()]) };
        match self {
            Self::Iam(object) => object.retag(aws.iam(), &change).await,
            Self::Queue(url) => retag_queue(aws, url, change).await,
            Self::Eks(arn) => retag_eks(aws, arn, &change).await,
        }
    }
}

impl Mark {
    /// Adds the mark to the tags that an object is made with.
    pub fn on(&self, tags: &Tags) -> Tags {
        let mut marked = tags.clone();
        marked.insert(UNFINISHED.to_owned(), self.text().to_owned());
        marked
    }

    /// Says whether an object that exists is this creation's to go on with: marked, and of the same cluster.
    pub fn is_on(&self, actual: &Tags, wanted: &Tags) -> bool {
        actual.get(CLUSTER_KEY) == wanted.get(CLUSTER_KEY) && self.continues(actual.get(UNFINISHED).map(String::as_str))
    }
}

impl Origin {
    /// Gives what is marked of one that was made now.
    pub fn marked(self, object: Marked) -> Option<Marked> {
        (self == Self::Made).then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_and_of_the_cluster_is_gone_on_with() {
        let of = |cluster: &str| Tags::from([(CLUSTER_KEY.to_owned(), cluster.to_owned())]);
        let mark = Mark::new();
        assert!(mark.is_on(&mark.on(&of("a")), &of("a")));
        assert!(!mark.is_on(&mark.on(&of("b")), &of("a")), "another cluster's");
        assert!(!mark.is_on(&of("a"), &of("a")), "finished");
        assert!(mark.is_on(&mark.on(&Tags::new()), &Tags::new()), "neither names a cluster");
    }
}
