#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "tests/kineto/imported.hpp"
#include "tests/temporary_folder.hpp"

/// Collectives of a profile: bytes, times, groups and ranks, and what they show of shards and buffers.
namespace stepcast::tests::kineto_collectives_test {

TEST_CASE("two ranks of DDP give compute without waits and their all-reduces by the latest start") {
  const std::vector<std::string> paths{fixture("cnn-ddp-2.7.1-rank0"), fixture("cnn-ddp-2.7.1-rank1")};
  const ProfiledRun run = read_profiled_run({paths[1], paths[0]});
  REQUIRE(run.ranks.size() == 2);
  CHECK(run.ranks.front().metadata.rank == 0);
  CHECK(run.ranks.front().strategy == "ddp");
  double bytes = 0.0;
  for (const TracedCollective& call : run.collectives) {
    CHECK(call.kind == "all_reduce");
    CHECK(call.ranks == 2);
    CHECK(call.per_step == 1.0);
    bytes += call.bytes;
    for (const std::string& path : paths)
      for (const TracedCollective& alone : read_profiled_run({path}).collectives)
        if (alone.bytes == call.bytes) CHECK(median(call.time_s) <= median(alone.time_s));
  }
  CHECK(bytes == 4.0 * 136874);
  const TraceEntry entry = traced_entry(run, 16);
  REQUIRE(entry.steps() == 4);
  CHECK(entry.launch == std::vector<int>{0, 0, 1, 1});
  for (std::size_t k = 0; k < entry.steps(); ++k) {
    double compute = entry.input_s[k] + entry.loss_s[k];
    for (const SegmentTrace& segment : entry.segments)
      compute += segment.forward_s[k] + segment.backward_s[k] + segment.optimizer_s[k];
    CHECK(compute < 0.8 * entry.step_s[k]);  // the rest is waits for the other rank
  }
}

TEST_CASE("units of FSDP2 are segments, and the optimizer's shards are added up") {
  const ProfiledRun run =
      read_profiled_run({fixture("transformer-fsdp-2.15.0-rank0"), fixture("transformer-fsdp-2.15.0-rank1")});
  CHECK(run.parameters == 167680);
  CHECK(run.shards == 2);
  std::vector<std::string> units;
  for (const ProfiledSegment& segment : run.segments)
    if (segment.repeated) units.push_back(segment.name);
  CHECK(units == std::vector<std::string>{"blocks.0", "blocks.1"});
  double gathered = 0.0, blocks = 0.0;  // the root once, blocks in the forward and in the backward
  for (const TracedCollective& call : run.collectives)
    if (call.kind == "all_gather") gathered += call.per_step * call.bytes;
  for (const ProfiledSegment& segment : run.segments) blocks += segment.repeated ? segment.total() : 0.0;
  CHECK(gathered == 4.0 * (run.parameters + blocks));
}

TEST_CASE("what follows a unit of FSDP belongs to the unit around it", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.layers.insert(profile.layers.begin(), {{64, 8}, 10.0, 20.0});
  profile.layers.push_back({{4, 8}, 10.0, 20.0});
  nlohmann::json json = profile.json();
  std::vector<nlohmann::json> hooks;
  for (const nlohmann::json* event : events_named(json, "aten::linear")) {
    const auto layer = (*event)["args"]["Input Dims"][1][0].get<int>();
    const double begin = (*event)["ts"], end = begin + (*event)["dur"].get<double>();
    const auto hook = [&](const char* name, double time) {
      hooks.push_back(slice("user_annotation", name, 100, time, 0.1));
    };
    if (layer == 32) hook("FSDP::pre_forward (block)", begin - 0.3);
    if (layer == 32) hook("FSDP::pre_forward (block.attention)", begin - 0.15);
    if (layer == 32) hook("FSDP::post_forward (block.attention)", end + 0.1);
    if (layer == 8) hook("FSDP::post_forward (block)", end + 0.1);
  }
  add_events(json, hooks);
  const ProfiledRun run = read_profiled_run({folder.write("units.json", json.dump())});
  std::vector<std::string> names;
  for (const ProfiledSegment& segment : run.segments) names.push_back(segment.name);
  CHECK(names == std::vector<std::string>{"linear", "block.attention", "block", "linear-2"});
  CHECK(run.segments[2].repeated);
  CHECK_FALSE(run.segments[3].repeated);
}

TEST_CASE("a GPU's collectives have bytes, a group and the part that no kernel hides") {
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  for (int rank = 0; rank < 2; ++rank) {
    WrittenProfile profile = two_layers();
    profile.all_reduce = 80.0;
    profile.late = rank == 0 ? 60.0 : 0.0;
    profile.rank = rank;
    profile.ranks = 2;
    paths.push_back(folder.write("rank" + std::to_string(rank) + ".json", profile.json().dump()));
  }
  const Trace both = imported_trace(paths);
  REQUIRE(both.collectives.size() == 1);
  CHECK(both.collectives.front().bytes == 4.0 * (32 * 16 + 8 * 32));
  CHECK(both.collectives.front().ranks == 2);
  CHECK(median(both.collectives.front().time_s) == Approx(80e-6));  // rank 0 waited 60 us
  CHECK(median(imported_trace({paths[0]}).collectives.front().time_s) == Approx(140e-6));
  CHECK(both.profile.at("exposed") == Approx(80e-6));
}

TEST_CASE("a profile without distributedInfo is of as many ranks as its largest collective", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 8);
  nlohmann::json json = profile.json();
  json.erase("distributedInfo");
  const Imported imported = import_files({folder.write("unnamed.json", json.dump())});
  CHECK_THAT(imported.understood.front(), Catch::Contains("profile of 1 rank of 8"));
  CHECK_THAT(joined(imported.assumed), Catch::Contains("collectives contain waits for other ranks"));
}

TEST_CASE("kernels of collectives without a launch in their call belong to the call", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 2);
  profile.waits = false;
  nlohmann::json unlinked = profile.json(), coalesced = unlinked;
  for (nlohmann::json* event : events_named(unlinked, "nccl")) (*event)["args"]["correlation"] = 0;
  add_events(unlinked, {slice("cuda_runtime", "cudaEventRecord", 100, 1000.5, 0.1, {{"correlation", 0}})});
  for (nlohmann::json* event : events_named(coalesced, "record_param_comms")) (*event)["dur"] = 0.5;
  for (const nlohmann::json& json : {unlinked, coalesced}) {
    const Trace trace = imported_trace({folder.write("changed.json", json.dump())});
    REQUIRE(trace.collectives.size() == 1);
    CHECK(trace.collectives.front().per_step == 1.0);
    CHECK(trace.collectives.front().bytes == 4.0 * (32 * 16 + 8 * 32));
    for (const double time_s : trace.collectives.front().time_s) CHECK(time_s == Approx(80e-6));
    CHECK(trace.profile.at("exposed") == Approx(80e-6));
  }
}

TEST_CASE("a kernel that states its call is a collective, whatever its name", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  for (nlohmann::json* event : events_named(json, "nccl")) (*event)["name"] = "void transport::exchange()";
  const std::string unknown = folder.write("unknown.json", json.dump());
  CHECK_THAT(joined(import_files({unknown}).assumed), Catch::Contains("all_reduce without time"));
  for (nlohmann::json* event : events_named(json, "void transport"))
    (*event)["args"]["Collective name"] = "allreduce";
  const Imported imported = import_files({folder.write("stated.json", json.dump())});
  CHECK_THAT(joined(imported.assumed), !Catch::Contains("without time"));
  CHECK(nlohmann::json::parse(imported.text)["profile"]["exposed"] == Approx(80e-6));
}

TEST_CASE("calls that one kernel carries out share its time", "[kineto]") {
  const TemporaryFolder folder;
  const WrittenProfile profile = two_layers(80.0, 2);
  nlohmann::json json = profile.json();
  std::vector<nlohmann::json> more;
  for (nlohmann::json* event : events_named(json, "record_param_comms")) {
    (*event)["dur"] = 0.3;
    more.push_back(*event);
    const double begin = (*event)["ts"];
    more.back()["ts"] = begin + 0.5;
    more.push_back(slice("user_annotation", "nccl:coalesced", 101, begin + 0.9, 2.0));
  }
  add_events(json, more);
  const Trace reductions = imported_trace({folder.write("reductions.json", json.dump())});
  REQUIRE(reductions.collectives.size() == 1);
  CHECK(reductions.collectives.front().per_step == 2.0);
  for (const double time_s : reductions.collectives.front().time_s) CHECK(time_s == Approx(40e-6));
  int number = 0;
  for (nlohmann::json* event : events_named(json, "record_param_comms"))
    (*event)["args"]["Collective name"] = number++ < profile.steps ? "send" : "recv";
  for (nlohmann::json* event : events_named(json, "nccl"))
    (*event)["name"] = (*event)["cat"] == "kernel" ? "ncclDevKernel_SendRecv(...)" : "nccl:coalesced";
  const Trace transfers = imported_trace({folder.write("transfers.json", json.dump())});
  REQUIRE(transfers.collectives.size() == 2);
  for (const TracedCollective& call : transfers.collectives) {
    CHECK(call.bytes == 4.0 * (32 * 16 + 8 * 32));
    for (const double time_s : call.time_s) CHECK(time_s == Approx(40e-6));
  }
}

TEST_CASE("collectives of Gloo are exposed if the GPU does nothing else", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(0.0, 2);
  profile.steps = 1;
  nlohmann::json json = profile.json();
  nlohmann::json args = {{"Input type", {"float"}}};
  args["Input Dims"][0][0] = 768;
  const double end = 1003.0 + profile.device_step();  // of the last kernel
  add_events(json, {slice("user_annotation", "gloo:all_reduce", 103, end - 20.0, 80.0, args)});
  const Trace trace = imported_trace({folder.write("gloo.json", json.dump())});
  CHECK(trace.profile.at("exposed") == Approx(60e-6));
  CHECK(trace.profile.at("device_collectives") == Approx(80e-6));
  CHECK(trace.collectives.front().bytes == 4.0 * 768);
}

TEST_CASE("a collective of unknown size does not hide the bytes of the others", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  std::vector<nlohmann::json> more;
  for (nlohmann::json* event : events_named(json, "record_param_comms")) {
    (*event)["dur"] = 0.3;
    more.push_back(*event);
    more.back()["ts"] = (*event)["ts"].get<double>() + 0.5;
    more.back()["args"].erase("In msg nelems");
  }
  add_events(json, more);
  CHECK_THAT(joined(import_files({folder.write("unsized.json", json.dump())}).understood),
             Catch::Contains("2 all_reduce of 3072 B (") && Catch::Contains("1 x unknown size"));
}

TEST_CASE("counts of elements that overflowed, and the dtypes of AMD's eight bits, give bytes", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  for (nlohmann::json* event : events_named(json, "record_param_comms")) {
    (*event)["args"]["In msg nelems"] = -1294967296;  // 3e9 as an int
    (*event)["args"]["dtype"] = "Float8_e4m3fnuz";
  }
  CHECK(imported_trace({folder.write("large.json", json.dump())}).collectives.front().bytes == 3e9);
}

TEST_CASE("all-gathers of versions without fields have the elements of all ranks", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.ranks = 8;
  nlohmann::json json = profile.json();
  const auto dims = [](std::vector<std::vector<int>> all) {
    return nlohmann::json{{"Input Dims", all}, {"Input type", {"float", "float"}}};
  };
  std::vector<double> ends;
  for (const nlohmann::json* event : events_named(json, "Optimizer.step#"))
    ends.push_back((*event)["ts"].get<double>() + (*event)["dur"].get<double>());
  for (const double end : ends) {
    json["traceEvents"].push_back(slice("cpu_op", "c10d::_allgather_base_", 100, end + 0.1, 0.3,
                                        dims({{1024}, {512}})));  // of a group of two
    json["traceEvents"].push_back(
        slice("user_annotation", "nccl:_all_gather_base", 100, end + 0.2, 0.1, dims({{512}})));
    json["traceEvents"].push_back(
        slice("user_annotation", "nccl:all_gather", 100, end + 0.5, 0.1, dims({{512}})));
  }
  std::vector<double> bytes;
  for (const TracedCollective& call : read_profiled_run({folder.write("old.json", json.dump())}).collectives)
    bytes.push_back(call.bytes);
  CHECK(bytes == std::vector<double>{4.0 * 1024, 4.0 * 8 * 512});
}

TEST_CASE("FSDP's reductions give parameters without shapes, and the ranks that share the optimizer",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 4);
  nlohmann::json json = profile.json();
  for (nlohmann::json& event : json["traceEvents"]) event["args"].erase("Input Dims");
  const nlohmann::json gather{{"Collective name", "_allgather_base"},
                              {"dtype", "Float"},
                              {"Out msg nelems", 32 * 16 + 8 * 32},
                              {"Group size", 8},
                              {"Process Group Name", "replicas"}};
  std::vector<nlohmann::json> gathers;
  for (const nlohmann::json* event : events_named(json, "record_param_comms"))
    gathers.push_back(
        slice("cpu_op", "record_param_comms", 101, (*event)["ts"].get<double>() - 0.5, 0.4, gather));
  add_events(json, gathers);
  nlohmann::json sharded = json;
  for (nlohmann::json* event : events_named(sharded, "ncclDev"))
    (*event)["name"] = "ncclDevKernel_ReduceScatter";
  for (nlohmann::json* event : events_named(sharded, "record_param_comms"))
    if ((*event)["args"]["Collective name"] == "allreduce")
      (*event)["args"]["Collective name"] = "_reduce_scatter_base";
  add_events(sharded, {slice("user_annotation", "FSDP::root_pre_forward", 100, 1000.0, 0.1)});
  const ProfiledRun run = read_profiled_run({folder.write("fsdp.json", sharded.dump())});
  CHECK(run.parameters == 32 * 16 + 8 * 32);
  CHECK(run.shards == 4);
  // ZeRO-1 gathers what every rank has updated.
  add_events(json, {slice("cpu_op", "torch::distributed::reducer::mul_out", 100, 1000.0, 0.1)});
  CHECK(read_profiled_run({folder.write("zero1.json", json.dump())}).shards == 8);
  // Sequence parallelism in groups as large moves more.
  for (nlohmann::json& each : gathers) {
    each["ts"] = each["ts"].get<double>() + 0.41;
    each["dur"] = 0.05;
    each["args"]["Out msg nelems"] = 100'000;
    each["args"]["Process Group Name"] = "tensor";
  }
  add_events(json, gathers);
  CHECK(read_profiled_run({folder.write("sequence.json", json.dump())}).shards == 8);
}

TEST_CASE("buffers are what DDP broadcasts before a forward, not what ZeRO-1 broadcasts after an update",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 4);
  profile.accumulate = 2;
  profile.steps = 8;
  nlohmann::json json = profile.json();
  const auto broadcast = [](double time, int elements) {
    return slice("cpu_op", "record_param_comms", 100, time, 0.2,
                 {{"Collective name", "broadcast"},
                  {"dtype", "Float"},
                  {"In msg nelems", elements},
                  {"Group size", 4},
                  {"Process Group Name", "0"}});
  };
  std::vector<nlohmann::json> calls{
      slice("cpu_op", "torch::distributed::reducer::mul_out", 100, 1004.5, 0.1)};  // DDP's sign
  for (const nlohmann::json* step : events_named(json, "ProfilerStep#"))
    calls.push_back(broadcast((*step)["ts"].get<double>() + 0.1, 8));
  for (nlohmann::json* event : events_named(json, "aten::linear"))  // after the call
    (*event)["ts"] = (*event)["ts"].get<double>() + 0.5;
  nlohmann::json plain = json;
  add_events(plain, calls);
  const ProfiledRun ddp = read_profiled_run({folder.write("ddp.json", plain.dump())});
  CHECK(ddp.ranks.front().buffers == 8);
  CHECK_THAT(joined(import_files({folder.file("ddp.json")}).understood, "\n"), Catch::Contains("B (equal)"));
  CHECK(ddp.shards == 1);
  for (const nlohmann::json* event : events_named(json, "Optimizer.step#"))
    for (const int elements : {32 * 16, 8 * 32})
      calls.push_back(broadcast((*event)["ts"].get<double>() + (elements == 512 ? 4.1 : 4.4), elements));
  add_events(json, calls);
  const ProfiledRun zero = read_profiled_run({folder.write("zero.json", json.dump())});
  CHECK(zero.ranks.front().buffers == 8);
  CHECK(zero.shards == 4);
  // Without no_sync() each micro-batch reduces.
  profile.accumulate = 1;
  json = profile.json();
  add_events(json, {calls.front()});
  int number = 0;
  for (nlohmann::json* event : events_named(json, "Optimizer.step#"))
    if (number++ % 2 == 0) (*event)["name"] = "other";
  const Imported sync = import_files({folder.write("sync.json", json.dump())});
  CHECK_THAT(joined(sync.understood, "\n"), Catch::Contains("B (equal in each micro-batch)"));
  CHECK_THAT(joined(sync.assumed), !Catch::Contains("between operations of the forward"));
}

}  // namespace stepcast::tests::kineto_collectives_test
