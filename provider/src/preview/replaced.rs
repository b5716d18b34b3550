//! What goes when a pool or a class is destroyed so that another can take its place.

/// An object that is destroyed for another to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Its kind, as the API names it.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The attributes that are not changed in place.
    pub because: Vec<String>,
    /// What becomes of its nodes.
    pub ending: Ending,
    /// Its nodes; nothing while the cluster is not known, or why they could not be looked at.
    pub nodes: Option<Result<Nodes, String>>,
}

/// What becomes of the nodes of an object that is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The pool's budgets let them go one after the other.
    Drained,
    /// All are asked to leave at once.
    Hurried,
    /// The object waits until others have ended them.
    AwaitedBy,
}

/// The nodes of an object that is destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// How many.
    pub count: usize,
    /// How many their pool's budgets let go at a time, where they leave at that pace.
    pub at_once: Option<usize>,
    /// What holds pods on them, empty where nothing does; or why that could not be looked at.
    pub held: Result<String, String>,
}
