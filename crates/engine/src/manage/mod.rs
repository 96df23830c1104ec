//! What is managed: pages become managed where they lie, move with the program's mremap, are adopted with their
//! content, and are given up again.

pub(crate) mod adopt;
pub(crate) mod fork;
pub(crate) mod hand_over;
pub(crate) mod pages;
pub(crate) mod remap;
