//! Queries of the resolver. The C library has the kernel store what a server answers in the program's own buffer, and
//! send the program's own query. An answer is also there where the result is a failure.

use std::ffi::{c_char, c_int, c_void};

use crate::calls::copied::copied;

type Text = *const c_char;
type State = *mut c_void;

// Each has a name of its own for programs that were linked to glibc before 2.34.
copied! {
    fn res_query, __res_query(
        name: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_search, __res_search(
        name: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_querydomain, __res_querydomain(
        name: Text, domain: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_send, __res_send(
        query: *const u8 = bytes(query_len), query_len: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_nquery, __res_nquery(
        state: State, name: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_nsearch, __res_nsearch(
        state: State, name: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_nquerydomain, __res_nquerydomain(
        state: State, name: Text, domain: Text, class: c_int, kind: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
    fn res_nsend, __res_nsend(
        state: State, query: *const u8 = bytes(query_len), query_len: c_int, answer: *mut u8 = changed(len), len: c_int
    ) -> c_int;
}
