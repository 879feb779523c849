#include "sim/evidence/nccl_samples.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <tuple>

#include "calibration/nccl_calibration.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "sim/evidence/measured_collectives.hpp"
#include "tests/temporary_folder.hpp"

/// Files of others, written by hand in their form, and what is made of them.
namespace stepcast::nccl_samples_test {
namespace {

using Catch::Contains;

/// Reads a file of that content.
std::vector<NcclSample> read(const std::string& content, const std::string& kind = "") {
  const TemporaryFolder folder;
  return read_nccl_samples({folder.write("measured", content)}, {.kind = kind}).samples;
}

const std::string kText = R"(# Collective test starting: reduce_scatter_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid    101 on     node-a device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    101 on     node-a device  1 [0000:2b:00] NVIDIA H100 80GB HBM3
#     size    count   type  redop   root    time  algbw  busbw  #wrong    time  algbw  busbw  #wrong
      1024      128  float    sum     -1    7.50   0.14   0.07       0    7.25   0.14   0.07       0
      2048      256  float    sum     -1    8.00   0.26   0.13       0    7.75   0.26   0.13       0
# Out of bounds values : 0 OK
)";

TEST_CASE("nccl-tests' table contains collective, GPUs, dtype, size and the time out of place") {
  const std::vector<NcclSample> samples = read(kText);
  REQUIRE(samples.size() == 2);
  CHECK(samples[1].kind == CollectiveKind::kReduceScatter);
  CHECK(samples[1].gpus == 2);
  CHECK(samples[1].hosts == 1);
  CHECK(samples[1].dtype == "float");
  CHECK(samples[1].message == Bytes(2048));
  CHECK(samples[1].time.count() == Approx(8e-6));
  CHECK(samples[1].device == "NVIDIA H100 80GB HBM3");
}

TEST_CASE("text: two ranks on one GPU are on two hosts of one name; different GPUs in one run are refused") {
  const auto second = [](const std::string& gpu) {
    return std::regex_replace(kText, std::regex(R"(device  1 .*)"), gpu);
  };
  CHECK(read(second("device  0 [0000:1b:00] NVIDIA H100 80GB HBM3")).front().hosts == 2);
  CHECK(read(second("device  0 [0000:2b:00] NVIDIA H100 80GB HBM3")).front().hosts == 1);
  CHECK_THROWS_WITH(read(second("device  1 [0000:2b:00] NVIDIA A100-SXM4-80GB")),
                    Contains(":5: GPU 'NVIDIA A100-SXM4-80GB'") && Contains("'NVIDIA H100 80GB HBM3'"));
}

TEST_CASE("text: ranks above the settings are those of a run that failed, and do not count") {
  const std::string ranks = "#  Rank  1 Pid 9 on node-b device  7 [0000:1b:00] NVIDIA A100-SXM4-80GB\n";
  const std::vector<NcclSample> samples =
      read("# reduce_scatter_perf\n# nThread 1 nGpus 2\n" + ranks + "node-b: Test NCCL failure\n" + kText);
  REQUIRE(samples.size() == 2);
  CHECK(samples[0].gpus == 2);
  CHECK(samples[0].hosts == 1);
  CHECK(samples[0].device == "NVIDIA H100 80GB HBM3");
}

TEST_CASE("text: what programs write before each line is removed, and what ran side by side is refused") {
  for (const std::string prefix : {"[pod/nccl-0/main] ", "nccl-1  | ", "[default0]:"}) {
    INFO(prefix);
    const std::vector<NcclSample> samples =
        read(prefix + std::regex_replace(kText, std::regex("\n(?=.)"), "\n" + prefix));
    REQUIRE(samples.size() == 2);
    CHECK(samples[1].message == Bytes(2048));
  }
  const std::string rank =
      "#  Rank  0 Group  0 Pid    102 on node-a device  1 [0000:2b:00] NVIDIA H100 80GB HBM3\n";
  CHECK_THROWS_WITH(
      read(kText.substr(0, kText.find("#  Rank  1")) + rank + kText.substr(kText.find("#     size"))),
      Contains(":5: rank 0 is listed twice") && Contains("MPI=1"));
  std::string gathers = kText;
  gathers.replace(gathers.find("0.13"), 4, "0.46").replace(gathers.find("0.07"), 4, "0.25");
  CHECK_THROWS_WITH(read(gathers), Contains("reduce_scatter: busbw / algbw = 1.7"));
  const TemporaryFolder folder;
  const NcclMeasurements named = read_nccl_samples({folder.write("named", kText)}, {.kind = "all_gather"});
  REQUIRE(named.ignored.size() == 1);
  CHECK_THAT(named.ignored.front(),
             Contains("--collective all_gather, as the table is that of reduce_scatter"));
  std::string graphs = kText;
  graphs.replace(graphs.find("step: 2(factor)"), 15, "agg iters: 1 graph: 20");
  const NcclMeasurements measured = read_nccl_samples({folder.write("graphs", graphs)}, {});
  REQUIRE_FALSE(measured.assumed.empty());
  CHECK_THAT(measured.assumed.front(), Contains("line 2: 'graph: 20'"));
}

NcclMeasurements read_case(const std::string& name, const NcclHints& hints = {}) {
  return read_nccl_samples({std::string(STEPCAST_SOURCE_DIR) + "/tests/evidence/nccl_tests/" + name}, hints);
}

TEST_CASE("a table that does not name its test is recognised by busbw / algbw, redop and root") {
  const std::string unnamed = kText.substr(kText.find('\n') + 1);
  CHECK(read(unnamed).front().kind == CollectiveKind::kReduceScatter);
  CHECK(read(unnamed, "all_gather").front().kind == CollectiveKind::kAllGather);
  std::string either = unnamed;
  for (auto at = either.find("sum"); at != std::string::npos; at = either.find("sum"))
    either.replace(at, 3, "none");
  CHECK_THROWS_WITH(read(either), Contains(":6") && Contains("--collective does: all_gather, alltoall"));
  CHECK_THROWS_WITH(read("# Collective test starting: all_gather_perf\n 8 2 float none -1 5.1 0 0 0\n"),
                    Contains(":2") && Contains("how many GPUs") && Contains("--gpus"));
  CHECK_THROWS_WITH(read("# Collective test starting: sendrecv_perf\n 8 2 float none -1 5.1 1.0 1.0 0\n"),
                    Contains("sendrecv_perf, which is not forecast"));
}

TEST_CASE("columns alone: the ratio 1.75 is an all-reduce of 8 GPUs") {
  const NcclMeasurements measured = read_case("columns_alone.txt");
  REQUIRE(measured.samples.size() == 3);
  for (const NcclSample& sample : measured.samples) {
    CHECK(sample.kind == CollectiveKind::kAllReduce);
    CHECK(sample.gpus == 8);
    CHECK(sample.device.empty());
  }
  REQUIRE(measured.assumed.size() == 3);
  CHECK_THAT(measured.assumed[2], Contains("8 GPUs on 1 host (0 ranks listed)"));
  CHECK_THROWS_WITH(read_case("columns_alone.txt", {.gpus = 4}),
                    Contains("--gpus 4: busbw / algbw = 1.75 is that of 8 to 8 GPUs"));
  CHECK_THROWS_WITH(read_case("columns_alone.txt", {.kind = "all_gather"}),
                    Contains("--collective all_gather: busbw / algbw = 1.75"));
}

TEST_CASE("tags of mpirun are removed, and lines of other ranks and of standard error") {
  const NcclMeasurements measured = read_case("mpirun_tags.txt");
  REQUIRE(measured.samples.size() == 3);
  CHECK(measured.samples[2].time.count() == Approx(431.9e-6));
  CHECK(measured.samples[2].hosts == 2);
  CHECK(measured.samples[2].gpus == 2);
  for (const std::string tag : {"0: ", "[0] ", "[prterun-node-a-77@1,0]<stdout>: ",
                                "Thu Mar 25 11:11:11 2021[1,0]<stdout>:", "2024-05-01 12:34:56.789 "}) {
    INFO(tag);
    std::string other = tag + kText;
    for (auto at = other.find('\n'); at + 1 < other.size(); at = other.find('\n', at + 1))
      other.insert(at + 1, tag);
    CHECK(read(other).size() == 2);
    std::string second = other;  // lines of another rank
    for (auto at = second.find("0]"); at != std::string::npos; at = second.find("0]", at + 1))
      second[at] = '1';
    if (tag.find("0]") != std::string::npos) CHECK_THROWS_AS(read(second), InputError);
  }
}

/// An all-reduce of nccl-tests on 8 GPUs. \param bandwidths its keys, for example `"alg_bw": 10.0`
std::string tests_json(const std::string& last_device, const std::string& bandwidths, int devices = 8) {
  std::string listed;
  for (int i = 0; i < devices; ++i)
    listed += (i > 0 ? ", " : "") + std::string(R"({"hostname": "a", "rank": )") + std::to_string(i) +
              R"(, "device": )" + std::to_string(i) + R"(, "device_info": ")" +
              (i + 1 < devices ? "NVIDIA L40S" : last_device) + "\"}";
  return R"({"args": ["all_reduce_perf"], "config": {"nthreads": 1, "ngpus": 8, "devices": [)" + listed +
         R"(]}, "results": [{"size": 4096, "type": "half", "out_of_place": {"time": 9, )" + bandwidths +
         "}}]}\n";
}

TEST_CASE("a world that NCCL_TESTS_SPLIT divides: GPUs and hosts are those of the first rank's group") {
  const auto ranks = [](int hosts_of_group) {
    std::string text = "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 1024\n";
    for (int rank = 0; rank < 4; ++rank) {
      const int host = rank / 2, group = hosts_of_group == 1 ? host : rank % 2;
      text += fmt::format("#  Rank {0} Group {1} Pid 1 on node-{2} device {3} [0x{3}] NVIDIA L40S\n", rank,
                          group, host, rank % 2);
    }
    return text +
           "# size count type redop root time algbw busbw #wrong\n"
           " 33554432 8388608 float sum -1 2000.0 16.78 16.78 0\n";
  };
  for (const int hosts : {1, 2}) {
    const TemporaryFolder folder;
    const NcclMeasurements measured = read_nccl_samples({folder.write("log", ranks(hosts))});
    REQUIRE(measured.samples.size() == 1);
    CHECK(measured.samples[0].gpus == 2);
    CHECK(measured.samples[0].hosts == hosts);
    REQUIRE(measured.assumed.size() == 1);
    CHECK_THAT(measured.assumed[0], Contains("the table is of the first group; others run"));
  }
  std::string json = tests_json("NVIDIA L40S", R"("alg_bw": 10.0, "bus_bw": 10.0)", 4);
  for (const auto& [rank, host] : {std::pair("2", "b"), {"3", "b"}}) {
    const std::string before = fmt::format(R"({{"hostname": "a", "rank": {})", rank);
    json.replace(json.find(before), before.size(),
                 fmt::format(R"({{"hostname": "{}", "group": 1, "rank": {})", host, rank));
  }
  for (auto at = json.find(R"("a", "rank")"); at != std::string::npos; at = json.find(R"("a", "rank")", at))
    json.insert(at + 5, R"("group": 0, )");
  json.replace(json.find(R"("ngpus": 8)"), 10, R"("ngpus": 1)");
  const std::vector<NcclSample> samples = read(json);
  REQUIRE(samples.size() == 1);
  CHECK(samples[0].gpus == 2);
  CHECK(samples[0].hosts == 1);
}

TEST_CASE("rows of size 0, with wrong elements and cut rows are left out by line") {
  const NcclMeasurements measured = read_case("wrong_zero_and_cut_rows.txt");
  REQUIRE(measured.samples.size() == 1);
  CHECK(measured.samples[0].message == Bytes(8388608));
  CHECK(measured.samples[0].gpus == 4);
  REQUIRE(measured.ignored.size() == 3);
  CHECK_THAT(measured.ignored[0], Contains("line 10: a message of 0 B"));
  CHECK_THAT(measured.ignored[1], Contains("line 11: 12 wrong elements"));
  CHECK_THAT(measured.ignored[2], Contains("line 13: 7 of 13 columns"));
}

TEST_CASE("a list of ranks with lines left out: the highest rank and the ratio win") {
  const NcclMeasurements measured = read_case("ranks_elided.txt");
  REQUIRE(measured.samples.size() == 2);
  CHECK(measured.samples[0].gpus == 16);
  CHECK(measured.samples[0].hosts == 2);
  const std::string cut =
      read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/evidence/nccl_tests/ranks_elided.txt");
  const TemporaryFolder folder;
  const std::string fewer = std::regex_replace(cut, std::regex("#  Rank 15[^\n]*\n"), "");
  const NcclMeasurements without = read_nccl_samples({folder.write("cut.txt", fewer)});
  CHECK(without.samples.at(0).gpus == 16);
  CHECK_THAT(without.assumed.at(0), Contains("16 GPUs") && Contains("8 are listed"));
  const std::string wild = std::regex_replace(cut, std::regex("device +7 "), "device 2147483647 ");
  CHECK(read_nccl_samples({folder.write("wild.txt", wild)}).samples.at(0).hosts == 2);
}

TEST_CASE("columns that were removed by hand: rows are read by their header") {
  const std::vector<NcclSample> samples = read(
      "# all_gather_perf -g 4\n#  Rank 0 Pid 1 on a device 0 [0x1] NVIDIA H100 80GB HBM3\n"
      "#  Rank 3 Pid 1 on a device 3 [0x4] NVIDIA H100 80GB HBM3\n# size type time busbw\n 4096 half 12.5 "
      "3.1\n");
  REQUIRE(samples.size() == 1);
  CHECK(samples[0].gpus == 4);
  CHECK(samples[0].dtype == "half");
  CHECK(samples[0].time.count() == Approx(12.5e-6));
}

TEST_CASE("nccl-tests' JSON contains the same; without MPI it lists one device of all") {
  const std::vector<NcclSample> samples = read(R"({"version": 2, "args": ["build/alltoall_perf", "-g", "4"],
    "config": {"nthreads": 1, "ngpus": 4, "devices": [{"rank": 0, "hostname": "a",
      "device_info": "NVIDIA L40S"}]},
    "results": [{"size": 4096, "count": 256, "type": "half", "redop": "none", "root": "-1",
                 "out_of_place": {"time": 9.5, "alg_bw": 0.4, "bus_bw": 0.3, "nwrong": null},
                 "in_place": {"time": 11.5, "alg_bw": 0.4, "bus_bw": 0.3, "nwrong": null}},
                {"size": 8192, "count": 512, "type": "half", "redop": "none", "root": "-1",
                 "out_of_place": null,
                 "in_place": {"time": 12.5, "alg_bw": 0.4, "bus_bw": 0.3, "nwrong": null}}]})");
  REQUIRE(samples.size() == 2);
  CHECK(samples[0].kind == CollectiveKind::kAllToAll);
  CHECK(samples[0].gpus == 4);
  CHECK(samples[0].time.count() == Approx(9.5e-6));
  CHECK(samples[1].time.count() == Approx(12.5e-6));
  CHECK_THROWS_WITH(read(R"({"args": ["all_reduce_perf"], "results": []})"),
                    Contains("key 'config' is missing"));
  for (const char* devices : {R"({"a": 1})", R"("abc")", "[1,2]"})
    CHECK_THROWS_WITH(read(std::string(R"({"args": ["all_reduce_perf"], "config": {"devices": )") + devices +
                           R"(}, "results": []})"),
                      Contains("measured: key 'config': expected 'devices', a list of objects; found "));
  CHECK_THROWS_WITH(read(R"({"args": ["all_reduce_perf"], "config": {"devices": [{"hostname": 5}]},
    "results": []})"),
                    Contains("measured: devices[0]: key 'hostname': found 5"));
}

TEST_CASE("nccl-tests' JSON: busbw / algbw corrects the number of GPUs, and every document is read") {
  const TemporaryFolder folder;
  const auto measured = [&](const std::string& text) {
    return read_nccl_samples({folder.write("a.json", text)});
  };
  const std::string eight = tests_json("NVIDIA L40S", R"("alg_bw": 10.0, "bus_bw": 17.5)");
  CHECK(measured(eight).samples.front().gpus == 8);
  CHECK(measured(eight).assumed.empty());
  const NcclMeasurements split = measured(tests_json("NVIDIA L40S", R"("alg_bw": 10.01, "bus_bw": 10.01)"));
  CHECK(split.samples.front().gpus == 2);
  REQUIRE(split.assumed.size() == 1);
  CHECK_THAT(split.assumed[0], Contains("a.json: 2 GPUs, from busbw / algbw") && Contains("8 are listed"));
  const NcclMeasurements more =
      measured(tests_json("NVIDIA L40S", R"("alg_bw": 160.01, "bus_bw": 300.01875)", 1));
  CHECK(more.samples.front().gpus == 16);
  REQUIRE(more.assumed.size() == 2);
  CHECK_THAT(more.assumed[1], Contains("16 GPUs on 1 host (1 rank listed)"));
  const NcclMeasurements both = measured(eight + eight);
  REQUIRE(both.samples.size() == 2);
  CHECK_THAT(both.samples[1].where, Contains("a.json: object 2: results[0]"));
  const std::string other = std::regex_replace(eight, std::regex("all_reduce_perf"), "sendrecv_perf");
  const NcclMeasurements list = measured("[" + other + ",\n" + eight + "]");
  REQUIRE(list.samples.size() == 1);
  CHECK(list.samples[0].gpus == 8);
  REQUIRE(list.ignored.size() == 1);
  CHECK_THAT(list.ignored[0], Contains("results of sendrecv_perf, which is not forecast"));
  CHECK_THROWS_WITH(measured(other), Contains("sendrecv_perf, which is not forecast"));
  CHECK_THROWS_WITH(measured(tests_json("NVIDIA H100 80GB HBM3", R"("alg_bw": 10.0, "bus_bw": 17.5)")),
                    Contains("a.json: GPU 'NVIDIA H100 80GB HBM3'") && Contains("'NVIDIA L40S'"));
}

std::string inspector(int rank, int number, double bytes, double time_us, double algbw) {
  return R"({"header": {"id": "0xa", "rank": )" + std::to_string(rank) +
         R"(, "n_ranks": 4, "nnodes": 1}, "coll_perf": {"coll": "AllGather", "coll_sn": )" +
         std::to_string(number) + R"(, "coll_msg_size_bytes": )" + std::to_string(bytes) +
         R"(, "coll_exec_time_us": )" + std::to_string(time_us) + R"(, "coll_algobw_gbs": )" +
         std::to_string(algbw) + "}}\n";
}

TEST_CASE(
    "Inspector: the rank that came last tells a call's time, the median call the size's, and algbw the "
    "array") {
  const std::vector<NcclSample> samples =
      read(inspector(0, 1, 1e6, 90, 44.4) + inspector(1, 1, 1e6, 40, 100) + inspector(0, 2, 1e6, 50, 80) +
           inspector(0, 3, 1e6, 60, 66.7));
  REQUIRE(samples.size() == 1);
  CHECK(samples[0].message == Bytes(4e6));  // 100 GB/s x 40 us
  CHECK(samples[0].time.count() == Approx(50e-6));
  CHECK(samples[0].gpus == 4);
}

TEST_CASE("nccl-tests' JSON: rows with wrong elements, as number or text, are left out and noted") {
  const TemporaryFolder folder;
  const auto result = [](int size, const std::string& wrong) {
    return "{\"size\": " + std::to_string(size) +
           R"(, "type": "half", "out_of_place": {"time": 9, "nwrong": )" + wrong + "}}";
  };
  const NcclMeasurements measured = read_nccl_samples({folder.write(
      "a.json", R"({"args": ["all_reduce_perf"], "config": {"nthreads": 1, "ngpus": 4}, "results": [)" +
                    result(1024, "512") + "," + result(2048, R"("12")") + "," + result(4096, R"("N/A")") +
                    "," + result(8192, "0") + "]}")});
  CHECK(measured.samples.size() == 2);
  REQUIRE(measured.ignored.size() == 2);
  CHECK_THAT(measured.ignored[0], Contains("a.json: results[0]: 512 wrong elements"));
}

TEST_CASE("Inspector: ranks write a file each, and the shortest time of a call is over all of them") {
  const TemporaryFolder folder;
  const NcclMeasurements measured =
      read_nccl_samples({folder.write("0.json", inspector(0, 1, 1e6, 90, 44.4)),
                         folder.write("1.json", inspector(1, 1, 1e6, 40, 100))});
  REQUIRE(measured.samples.size() == 1);
  CHECK(measured.samples[0].time.count() == Approx(40e-6));
}

TEST_CASE("Inspector: a field of another type is refused by file, object, key and value") {
  const std::string good = inspector(0, 1, 1e6, 90, 44.4);
  for (const auto& [from, to, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {R"("nnodes": 1)", R"("nnodes": "one")", R"(key 'nnodes': found "one")"},
           {R"("id": "0xa")", R"("id": 10)", "key 'id': found 10"},
           {R"("coll_sn": 2)", R"("coll_sn": [2])", "key 'coll_sn': found [2]"},
           {R"("coll_algobw_gbs": 80.000000)", R"("coll_algobw_gbs": null)",
            "key 'coll_algobw_gbs': found null"}}) {
    std::string bad = inspector(0, 2, 1e6, 50, 80);
    bad.replace(bad.find(from), from.size(), to);
    CHECK_THROWS_WITH(read(good + bad), Contains("measured: object 2: " + message));
  }
}

TEST_CASE("a byte-order mark and gzip's compression change nothing") {
  const std::string mark = "\xef\xbb\xbf";
  CHECK(read(mark + kText).size() == 2);
  CHECK(read(mark + inspector(0, 1, 1e6, 90, 44.4)).size() == 1);
  const TemporaryFolder folder;
  for (const std::string& content : {kText, inspector(0, 1, 1e6, 90, 44.4)}) {
    const std::string path = folder.write("log", content);
    REQUIRE(std::system(("gzip -f '" + path + "'").c_str()) == 0);
    CHECK(read_nccl_samples({path + ".gz"}).samples.size() == read(content).size());
  }
}

TEST_CASE("GPUs with bridges of two are not taken to have NVSwitches, and the assumption is stated") {
  CHECK_THAT(assumed_connection("h100-sxm"), Contains("by NVSwitches"));
  CHECK_THAT(assumed_connection("v100-sxm"), Contains("by NVSwitches, as in cluster"));
  CHECK_THAT(assumed_connection("h100-pcie"), Contains("by PCIe switches in pairs"));
}

TEST_CASE("tables: missing columns and bad cells are named, files of nothing refused") {
  const std::string columns = "device,op_name,nccl_dtype,num_gpus,bytes,latency_us\n";
  CHECK(read(columns + "NVIDIA L40S,all_reduce,half,2,1024,8.5\n").front().time.count() == Approx(8.5e-6));
  CHECK_THROWS_WITH(read("device,op_name\nx,all_reduce\n"), Contains("column 'nccl_dtype' is missing"));
  CHECK_THROWS_WITH(read(columns + "x,all_reduce,half,2,1024,fast\n"), Contains(":2") && Contains("'fast'"));
  CHECK_THROWS_WITH(read(columns + "x,all_reduc,half,2,1,1\n"), Contains("all_reduce"));
  CHECK_THROWS_AS(read("hello\n"), InputError);
  CHECK_THROWS_WITH(read("{\"a\": 1}"), Contains("nccl-tests") && Contains("Inspector"));
  CHECK_THROWS_WITH(read("{\"results\": [\n"), Contains(":2:1: is not valid JSON: the file ends early"));
  const std::string one = inspector(0, 1, 1e6, 90, 44.4);
  CHECK_THROWS_WITH(read(one + one.substr(0, one.size() / 2)), Contains("the file ends early"));
}

TEST_CASE("parameters are recovered from forecasts of 2 GPUs and then forecast 8") {
  NcclParameters truth = nccl_parameters(90);
  truth.launch *= 1.4;
  truth.ll_hop *= 1.3;
  CollectiveForecasts forecasts;
  const auto samples = [&](int gpus) {
    std::vector<NcclSample> result;
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather})
      for (double bytes = 512; bytes < 1e6; bytes *= 4) {
        NcclSample one;
        one.kind = kind;
        one.gpus = gpus;
        one.message = Bytes(bytes);
        NcclGraph graph = forecasts.graph("h100-sxm", one);
        graph.gpu.parameters = &truth;
        one.time = nccl_time(graph, one);
        result.push_back(one);
      }
    return result;
  };
  const NcclCosts costs = fit_nccl("h100-sxm", samples(2));
  CHECK(nccl_error(costs, samples(2)) < 0.03);
  CHECK(nccl_error(costs, samples(8)) < 0.1);
  CHECK(std::find(costs.determined.begin(), costs.determined.end(), "launch") != costs.determined.end());
  CHECK(std::find(costs.determined.begin(), costs.determined.end(), "nvls_fill") == costs.determined.end());
}

TEST_CASE("a fit that misses its samples has a warning, and its worst error is at least the mean") {
  NcclSample slow;
  slow.kind = CollectiveKind::kAllReduce;
  slow.gpus = 8;
  slow.message = Bytes(268435456);
  slow.time = 10.0 * CollectiveForecasts().of("h100-sxm", slow);
  const Calibration off = nccl_calibration("h100-sxm", {slow});
  CHECK(off.nccl.fit.worst_absolute_relative_residual == Approx(nccl_error(off.nccl, {slow})));
  REQUIRE(off.warnings.size() == 1);
  CHECK_THAT(off.warnings[0], Contains("misses its own samples by"));
  slow.time = 0.1 * slow.time;
  CHECK(nccl_calibration("h100-sxm", {slow}).warnings.empty());
}

TEST_CASE(
    "known collectives: H100, A100 and B200 within 10 % for every collective and number of GPUs, L40S on two "
    "within 12 %") {
  const auto rows =
      measured_collectives(std::string(STEPCAST_SOURCE_DIR) + "/studies/measured/nccl_collectives.csv");
  CHECK(rows.size() == 2016);
  for (const CollectiveErrors& one : collective_errors(rows)) {
    INFO(one.group);
    const bool l40s = one.group.starts_with("l40s");
    if (!l40s) CHECK(one.forecast.geometric_mean() < 0.1);
    if (l40s && one.group.ends_with(" 2")) CHECK(one.forecast.geometric_mean() < 0.12);
  }
  CHECK_THAT(measured_collectives_text(rows), Contains("2016 rows"));
}

}  // namespace
}  // namespace stepcast::nccl_samples_test
