//! bumpalo over an arena: the example, which checks what it reads back.

#[path = "../examples/bumpalo.rs"]
mod example;

#[test]
fn a_bump_larger_than_the_budget() {
    example::main().unwrap();
}
