//! Runs each benchmark as small as possible and checks its exit status, its measures, and that no word is wrong.

mod scratch;

use scratch::Scratch;
use serde_json::Value;

/// Runs a benchmark with `--json` and returns its report.
fn report(args: &[&str]) -> Value {
    let scratch = Scratch::new();
    let json = scratch.path("report.json").display().to_string();
    let (status, said) = scratch.run(&[&["bench"], args, &["--json", &json]].concat());
    assert_eq!(status, 0, "{args:?}: {said}");
    let report: Value = serde_json::from_str(&scratch.text("report.json")).expect("JSON");
    assert_eq!(report["bench"], args[0]);
    assert_eq!(report["measures"]["bad_words"], 0, "{args:?}: {report:#}");
    assert!(report["machine"]["kernel"].is_string());
    let table = scratch.text("out");
    for name in report["measures"].as_object().expect("measures").keys() {
        assert!(table.contains(name.as_str()), "{name} is not told: {table}");
    }
    report
}

/// A measure, which must be there and be above 0.
fn positive(report: &Value, name: &str) -> f64 {
    let value = report["measures"][name].as_f64().unwrap_or_else(|| panic!("no measure {name}: {report:#}"));
    assert!(value > 0.0, "{name}: {report:#}");
    value
}

fn nr_rows(report: &Value) -> usize {
    report["rows"].as_array().expect("rows").len()
}

#[test]
fn sweeps_have_folios_of_any_size() {
    for folio in [&["--folio", "64K"][..], &[], &["--folio", "2M", "--swap-in", "never"]] {
        let shape = ["sweep", "--size", "24M", "--memory", "16M", "--rounds", "2", "--read-rounds", "1"];
        let report = report(&[&shape[..], &["--swap", "ram:64M"], folio].concat());
        positive(&report, "write_gbps");
    }
}

#[test]
fn one_piece_is_compared_with_pages() {
    let shape = ["sweep", "--size", "24M", "--memory", "16M", "--rounds", "2", "--read-rounds", "1"];
    let report = report(&[&shape[..], &["--swap", "ram:64M", "--versus", "pages"]].concat());
    positive(&report, "one_piece_vs_pages");
    assert_eq!(nr_rows(&report), 4 * 3);
    let systems = report["rows"].as_array().expect("rows").iter().map(|row| row["system"].as_str().expect("a name"));
    let mut systems: Vec<_> = systems.collect();
    systems.dedup();
    assert_eq!(systems, ["one piece", "pages", "one piece", "pages"]);
}

#[test]
fn random_accesses_are_counted_and_right() {
    let shape = ["random", "--size", "24M", "--memory", "16M", "--seconds", "0.3", "--swap", "ram:64M"];
    let rest: [&[&str]; 5] = [
        &["--threads", "3"],
        &["--read", "--dist", "zipf:0.9", "--folio", "64K", "--swap-in", "madvise"],
        &["--write", "--access", "64", "--dist", "hotcold", "--folio", "4K"],
        &["--access", "8", "--threads", "2", "--faults", "direct", "--folio", "auto"],
        &["--write", "--dist", "zipf:0.99", "--mapper", "copy"],
    ];
    for rest in rest {
        let report = report(&[&shape[..], rest].concat());
        positive(&report, "ops");
        let quantiles = ["p50_us", "p90_us", "p99_us", "p999_us"].map(|name| positive(&report, name));
        assert!(quantiles.is_sorted(), "{report:#}");
        assert!(positive(&report, "pswpout") > 0.0);
        assert!(report["measures"]["ops_vs_kernel"].is_null());
        assert_eq!(nr_rows(&report), 1);
    }
}

#[test]
fn records_are_swept_and_accessed() {
    let shape = ["--size", "24M", "--memory", "16M", "--swap", "ram:64M", "--data", "records"];
    let all = report(&[&["sweep", "--rounds", "2", "--threads", "2"], &shape[..]].concat());
    positive(&all, "read_gbps");
    assert!(all["measures"]["stored_share"].is_null() && all["measures"]["kernel_stored_share"].is_null());
    for access in ["4K", "128"] {
        let all = report(&[&["random", "--seconds", "0.3", "--access", access, "--threads", "2"], &shape[..]].concat());
        assert!(positive(&all, "pswpout") > 0.0);
        assert_eq!(all["rows"][0]["data"], "records");
    }
}

#[test]
fn compressed_ram_is_compared_with_the_kernels() {
    let scratch = Scratch::new();
    let json = scratch.path("report.json").display().to_string();
    let swap = ["--swap", "zram:64M", "--data", "records", "--versus", "kernel", "--json", &json];
    let sweep = ["bench", "sweep", "--size", "96M", "--memory", "32M", "--rounds", "2", "--read-rounds", "1"];
    let (status, said) = scratch.run(&[&sweep[..], &swap].concat());
    if said.contains("the kernel's swap") || said.contains("compressed RAM is not there yet") {
        println!("SKIPPED: {said}");
        return;
    }
    assert_eq!(status, 0, "{said}");
    let all: Value = serde_json::from_str(&scratch.text("report.json")).expect("JSON");
    positive(&all, "write_vs_kernel");
    let share = positive(&all, "kernel_stored_share");
    assert!((0.3..0.6).contains(&share), "{all:#}");
    let random = ["bench", "random", "--size", "96M", "--memory", "32M", "--seconds", "0.5"];
    let (status, said) = scratch.run(&[&random[..], &swap].concat());
    assert_eq!(status, 0, "{said}");
    let all: Value = serde_json::from_str(&scratch.text("report.json")).expect("JSON");
    positive(&all, "ops_vs_kernel");
    positive(&all, "p99_vs_kernel");
}

#[test]
fn the_inner_program_tells_its_figures() {
    let scratch = Scratch::new();
    let (status, said) = scratch.run(&["__random", "--size", "1M", "--seconds", "0.1", "--threads", "2"]);
    assert_eq!((status, said.as_str()), (0, ""));
    let figures = scratch.text("out");
    assert!(figures.starts_with("figures ") && figures.trim_end().ends_with(" 0"), "{figures}");
}

#[test]
fn the_engines_choice_is_compared_on_each_workload() {
    let shape = ["auto", "--size", "24M", "--memory", "16M", "--seconds", "0.25", "--swap", "ram:64M"];
    let all = report(&[&shape[..], &["--repeats", "1"]].concat());
    let least = positive(&all, "auto_vs_best_min");
    for name in ["sweep", "uniform", "zipf", "hotcold", "mix"] {
        assert!(positive(&all, &format!("auto_vs_best_{name}")) >= least);
    }
    assert_eq!(nr_rows(&all), 5 * 4);
    let one = report(&[&shape[..], &["--workload", "uniform", "--repeats", "2"]].concat());
    assert_eq!(nr_rows(&one), 2 * 4);
    assert!(one["measures"]["auto_vs_best_sweep"].is_null());
}

#[test]
fn the_slot_allocator_is_timed_beside_one_lock() {
    let all = report(&["alloc", "--threads", "2,1,3", "--orders", "0,4,9", "--pairs", "100", "--repeats", "2"]);
    for name in ["ns_order0", "ns_order4", "scaling_2", "vs_one_lock_2", "cached_vs_plain_1", "cached_vs_plain_2"] {
        positive(&all, name);
    }
    assert_eq!(nr_rows(&all), 3 * 3);
    assert_eq!((&all["rows"][1]["order"], &all["rows"][1]["threads"]), (&0.into(), &2.into()), "{all:#}");
    let one = report(&["alloc", "--threads", "1", "--pairs", "10", "--repeats", "1"]);
    positive(&one, "ns_order4");
    assert!(one["measures"]["scaling_2"].is_null() && one["measures"]["cached_vs_plain_2"].is_null());
    assert_eq!(nr_rows(&one), 10, "every order");
}

#[test]
fn latencies_of_both_ways_are_compared() {
    let all = report(&["latency", "--size", "64M", "--memory", "16M", "--seconds", "1.2", "--rounds", "2"]);
    for name in ["tail_async_vs_sync", "p50_async_vs_sync", "engine_tail_async_vs_sync", "freeing_tail_async_vs_sync"] {
        let each = ["_4k", "_64k"].map(|size| positive(&all, &format!("{name}{size}")));
        assert_eq!(positive(&all, name), each[0].max(each[1]), "the worse of both");
    }
    positive(&all, "accounting_ns");
    positive(&all, "accounting_long_ns");
    let rows = all["rows"].as_array().expect("rows");
    let ways: Vec<_> = rows.iter().map(|row| (row["folio"].as_str(), row["way"].as_str())).collect();
    let (sync, later) = ((Some("4K"), Some("sync")), (Some("4K"), Some("async")));
    assert_eq!((ways.len(), &ways[..4]), (8, &[sync, later, sync, later][..]));
    // When the machine stalls, touches are given up: they are counted without a swap-in.
    let kept_up = || rows.iter().filter(|row| row["kept_up"] == true);
    let sum = |path: &str| kept_up().filter_map(|row| row.pointer(path)?.as_f64()).sum::<f64>();
    // Only one fault in 16 has its phases recorded.
    let are_freed = sum("/phases/free/count") > sum("/due/count") / 64.0;
    assert!(are_freed || kept_up().next().is_none(), "slots are freed meanwhile: {rows:#?}");
    for row in rows {
        let number =
            |path: &str| row.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {row:#}"));
        assert!(number("/due/count") > 10.0 && number("/due/p50_us") >= number("/touch/p50_us"), "{row:#}");
        let most_swapped_in = number("/swap_in/count") > number("/due/count") / 2.0;
        assert!(most_swapped_in || row["kept_up"] == false, "most touches are swap-ins: {row:#}");
        let shares = ["below_20us", "to_100us", "to_500us", "over_500us"];
        let sum: f64 = shares.iter().map(|share| number(&format!("/due/share_{share}"))).sum();
        assert!((sum - 1.0).abs() < 1e-9 && number("/over_100us_by_phase/read") >= 0.0, "{row:#}");
    }
    let one = ["latency", "--size", "64M", "--memory", "16M", "--seconds", "0.6", "--folio", "64K", "--rate", "500"];
    let one = report(&one);
    assert_eq!((nr_rows(&one), &one["measures"]["rate_64k"]), (4, &500.into()));
    assert!(one["measures"]["tail_async_vs_sync_4k"].is_null());
}

#[test]
fn devices_on_two_nodes_are_compared() {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        println!("SKIP devices on two nodes: one CPU");
        return;
    }
    let shape = ["nodes", "--size", "64M", "--memory", "16M", "--bandwidth", "2G", "--rounds", "1", "--repeats", "2"];
    let all = report(&shape);
    for name in ["nearest_vs_list_1", "nearest_vs_list_16", "nearest_vs_equal_16"] {
        positive(&all, name);
    }
    let rows = all["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in rows {
        let used: Vec<u64> = row["used_bytes"].as_array().expect("two").iter().filter_map(Value::as_u64).collect();
        match row["way"].as_str() {
            Some("list") => assert_eq!(used[1], 0, "the first one has room for all: {row:#}"),
            // The reclaim thread may swap out everything, from one node.
            Some("nearest") => assert!(used[0] + used[1] > 0, "{row:#}"),
            _ => assert!(used[0] > 0 && used[1] > 0, "{row:#}"),
        }
    }
}

#[test]
fn two_disks_are_compared() {
    let scratch = Scratch::new();
    let json = scratch.path("devices.json").display().to_string();
    let swap = ["a", "b"].map(|name| scratch.path(name).display().to_string());
    let shape = ["bench", "devices", "--size", "64M", "--memory", "16M", "--rounds", "1", "--json", &json];
    let (status, said) = scratch.run(&[&shape[..], &["--swap", &swap[0], "--swap", &swap[1]]].concat());
    assert_eq!(status, 0, "{said}");
    let report: serde_json::Value = serde_json::from_str(&scratch.text("devices.json")).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let shares: Vec<_> = rows.iter().map(|row| row["share_of_first"].as_f64().expect("a share")).collect();
    assert!(shares[..2] == [1.0, 1.0] && (0.3..0.7).contains(&shares[2]), "they take turns: {shares:?}");
    for key in
        ["write_gbps", "rewrite_gbps", "read_gbps", "raw_sum_rewrite_gbps", "two_vs_one_read", "two_vs_raw_sum_write"]
    {
        assert!(report["measures"][key].as_f64() > Some(0.0), "{key}: {report}");
    }
}

#[test]
fn compressed_ram_in_front_of_a_file_is_compared_with_the_file() {
    let scratch = Scratch::new();
    let swap = scratch.path("swap").display().to_string();
    let shape = ["tier", "--size", "96M", "--memory", "16M", "--front", "16M", "--seconds", "0.2", "--threads", "2"];
    for rest in [&["--rounds", "2", "--folio", "64K", "--swap", &swap][..], &["--rounds", "1"]] {
        let all = report(&[&shape[..], rest].concat());
        for name in ["tier_vs_file", "file_ops", "tier_ops", "file_p50_us", "tier_p99_us", "p99_vs_file"] {
            positive(&all, name);
        }
        assert!(all["measures"]["file_reads_vs_file"].is_number());
        // More was written than the front holds, so that it must have written some back.
        assert!(positive(&all, "written_back_bytes") >= f64::from(1 << 20), "{all:#}");
        assert!(positive(&all, "front_memory_bytes") <= f64::from(16 << 20));
        assert!(positive(&all, "front_content_bytes") > positive(&all, "front_memory_bytes"), "{all:#}");
        let rows = all["rows"].as_array().expect("rows");
        let ways: Vec<_> = rows.iter().map(|row| row["way"].as_str().expect("a name")).collect();
        assert_eq!(ways, ["file", "tier", "file", "tier"][..2 * rest[1].parse::<usize>().expect("rounds")]);
        for row in rows {
            let is_tier = row["way"] == "tier";
            assert_eq!(row["written_back_bytes"].as_u64() > Some(0), is_tier, "{row:#}");
            assert!(row["read_bytes_per_op"].as_f64() > Some(0.0) || is_tier, "{row:#}");
        }
    }
}

#[test]
fn wrong_options_have_one_sentence_and_a_status() {
    let scratch = Scratch::new();
    let cases: &[(&str, &[&str])] = &[
        ("power of two", &["random", "--size", "24M", "--memory", "16M", "--folio", "3M"]),
        ("4K to 2M", &["sweep", "--size", "24M", "--memory", "16M", "--folio", "4M"]),
        ("power of two", &["random", "--size", "24M", "--memory", "16M", "--access", "12"]),
        ("power of two", &["random", "--size", "24M", "--memory", "16M", "--access", "8K"]),
        ("128", &["random", "--size", "24M", "--memory", "16M", "--access", "64", "--data", "records"]),
        ("--data", &["sweep", "--size", "24M", "--memory", "16M", "--data", "noise"]),
        ("zipf:THETA", &["random", "--size", "24M", "--memory", "16M", "--dist", "normal"]),
        ("zipf:THETA", &["random", "--size", "24M", "--memory", "16M", "--dist", "zipf:2"]),
        ("--write", &["random", "--size", "24M", "--memory", "16M", "--read", "--write"]),
        ("seconds", &["random", "--size", "24M", "--memory", "16M", "--seconds", "0"]),
        ("--size", &["random", "--size", "4K", "--memory", "16M"]),
        ("--memory", &["random", "--size", "24M"]),
        ("--versus", &["random", "--size", "24M", "--memory", "16M", "--versus", "pages"]),
        ("at least 16M", &["random", "--size", "24M", "--memory", "1M"]),
        ("swap", &["auto", "--swap", "/usr"]),
        ("at least 2M", &["auto", "--swap", "ram:4K"]),
        ("--workload", &["auto", "--workload", "sleep"]),
        ("--size", &["auto", "--size", "8K"]),
        ("at least 16M", &["auto", "--memory", "15M"]),
        ("--rounds 2", &["sweep", "--size", "24M", "--memory", "16M", "--versus", "pages", "--rounds", "1"]),
        ("--swap-in", &["random", "--size", "24M", "--memory", "16M", "--swap-in", "soon"]),
        ("--swap-in", &["sweep", "--size", "24M", "--memory", "16M", "--versus", "pages", "--swap-in", "never"]),
        ("--threads", &["alloc", "--threads", "0"]),
        ("--threads", &["alloc", "--threads", "1,32"]),
        ("--orders", &["alloc", "--orders", "4,10"]),
        (
            "--plot draws",
            &["sweep", "--size", "24M", "--memory", "16M", "--versus", "pages", "--plot", "/tmp/such.svg"],
        ),
        ("its directory does not exist", &["sweep", "--size", "24M", "--memory", "16M", "--json", "/no/such/file"]),
        ("its directory does not exist", &["latency", "--json", "/no/such.json"]),
        ("--versus", &["sweep", "--size", "24M", "--memory", "16M", "--versus", "time"]),
        ("--size", &["nodes", "--size", "1M"]),
        ("at least 16M", &["nodes", "--memory", "1M"]),
        ("--swap twice", &["devices", "--swap", "/var/tmp/a"]),
        ("files or block", &["devices", "--swap", "/var/tmp/a", "--swap", "ram:64M"]),
        ("--size", &["tier", "--size", "8K"]),
        ("at least 16M", &["tier", "--memory", "1M"]),
        ("8M", &["tier", "--front", "4M", "--size", "24M", "--memory", "16M"]),
        ("no priority", &["tier", "--swap", "/var/tmp/a,prio=3"]),
        ("does not compress", &["tier", "--swap", "zram:64M"]),
        ("--topology", &["auto", "--topology"]),
        ("topology", &["auto", "--topology", "/no/such/file"]),
        ("NUMA node", &["auto", "--swap", "ram:64M,node=1000"]),
        ("--folio", &["latency", "--folio", "2M"]),
        ("--rate", &["latency", "--rate", "0"]),
        ("--size", &["latency", "--size", "100M", "--memory", "32M"]),
    ];
    for (word, args) in cases {
        let (status, said) = scratch.run(&[&["bench"], *args].concat());
        assert_eq!(status, 125, "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(said.starts_with("folioswap: ") && said.contains(word), "{args:?}: {said}");
    }
}
