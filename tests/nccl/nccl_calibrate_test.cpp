#include "runner/measure/nccl_calibrate.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "core/file.hpp"
#include "models/model.hpp"
#include "runner/execute/device_library.hpp"
#include "sim/replay/prediction.hpp"
#include "tests/nccl/stand_in.hpp"
#include "tests/runner/as_ranks.hpp"
#include "tests/temporary_folder.hpp"
#include "topologies/devices.hpp"
#include "topologies/nccl_parameters.hpp"

/// Calibrations of the stand-in's GPUs. Its collectives take as long as this machine's threads need.
namespace stepcast::nccl_calibrate_test {
namespace {

using namespace std::chrono_literals;

const std::string kH100 = "NVIDIA H100 80GB HBM3";

/// Names of two devices, for the lifetime of the object.
class Named {
 public:
  Named(const std::string& first, const std::string& second) {
    stand_in::set_devices(2);
    stand_in::name_device(0, first);
    stand_in::name_device(1, second);
  }
  ~Named() {
    for (const int device : {0, 1}) stand_in::name_device(device, "");
    stand_in::set_devices(8);
  }
  Named& operator=(Named&&) = delete;
};

BenchSettings settings() {
  BenchSettings settings;
  settings.collectives = kCalibratedCollectives;
  settings.sizes = bench_sizes(512.0, 32768.0, 4.0);
  settings.rounds = 2;
  settings.iterations = 3;
  return settings;
}

/// Measures on two ranks; returns the result of rank 0. \param on_sample called by each rank
NcclMeasured calibrate(
    const std::string& device = "", const std::function<void(int rank)>& on_sample = [](int) {},
    std::chrono::milliseconds timeout = 60s) {
  NcclMeasured result;
  as_sessions(2,
              [&](RankSession& session) {
                const auto queue = open_device("cuda", session.ranks.local_rank);
                BenchSettings own = settings();
                own.device = queue.get();
                NcclMeasured measured = calibrate_nccl(
                    session, own, device, [&](const std::string&) { on_sample(session.ranks.rank); });
                if (session.ranks.rank == 0) result = std::move(measured);
              },
              {.backend = "nccl", .timeout = timeout, .ends_together = false});
  return result;
}

PredictionRequest question() {
  PredictionRequest request;
  request.strategy = "all_reduce";
  request.costs.model = "netflix-mlp";
  request.costs.device = "h100-sxm";
  request.environment.cluster = "h100x8-hgx";
  request.training.world_size = 2;
  request.costs.batch = 65536;
  request.replay.steps = 1;
  request.replay.warmup_steps = 0;
  return request;
}

}  // namespace

TEST_CASE("calibrate fits NCCL's parameters to measured collectives, and predict reads the file", "[nccl]") {
  const Named named(kH100, kH100);
  const NcclMeasured measured = calibrate();
  Calibration calibration = measured.calibration;
  calibration.context = make_run_context(kCalibrationSchema, {"test"});
  CHECK(calibration.job.backend == "nccl");
  CHECK(calibration.job.world_size == 2);
  CHECK(calibration.nccl.device == "h100-sxm");
  CHECK(calibration.nccl.least_gpus == 2);
  CHECK(calibration.nccl.smallest_bytes == 512.0);
  CHECK(calibration.nccl.largest_bytes == 32768.0);
  CHECK(calibration.nccl.fit.samples == 16);  // four collectives, four sizes
  CHECK_FALSE(calibration.nccl.determined.empty());
  CHECK(calibration.problem().empty());
  REQUIRE(calibration.samples.size() == 16);
  std::set<std::string> probes;
  for (const SampleSet& set : calibration.samples) {
    probes.insert(set.probe);
    CHECK(set.time_s.size() == 2);
    CHECK(set.machine.size() == 2);
  }
  CHECK(probes == std::set<std::string>(kCalibratedCollectives.begin(), kCalibratedCollectives.end()));

  // Import's fit of the same numbers is the same.
  CHECK(nccl_calibration("h100-sxm", measured.samples).nccl.parameters == calibration.nccl.parameters);

  const TemporaryFolder folder;
  const std::string path = folder.write("gpus.calibration.json", to_file_text(calibration));
  CHECK(load_calibration(path).nccl.parameters == calibration.nccl.parameters);
  PredictionRequest request = question();
  request.environment.calibration = path;
  CHECK(predict(request).median_step_time_s() > 0.0);
  request.costs.device = "a100-sxm";
  request.environment.cluster = "a100x8";
  CHECK_THROWS_WITH(predict(request), Catch::Contains("h100-sxm") && Catch::Contains("a100-sxm"));
}

TEST_CASE("predict takes NCCL's parameters from the calibration in place of those of nccl.yaml", "[nccl]") {
  const TemporaryFolder folder;
  const std::map<std::string, double> defaults =
      nccl_parameters(device_model("h100-sxm").compute_capability).values();
  PredictionRequest request = question();
  const double without = predict(request).median_step_time_s();
  const auto step_with = [&](const std::map<std::string, double>& parameters) {
    Calibration calibration;
    calibration.context = make_run_context(kCalibrationSchema, {"test"});
    calibration.job.backend = "nccl";
    calibration.nccl.device = "h100-sxm";
    calibration.nccl.parameters = parameters;
    request.environment.calibration = folder.write("gpus.calibration.json", to_file_text(calibration));
    return predict(request).median_step_time_s();
  };
  CHECK(step_with(defaults) == without);
  constexpr double kLonger = 100.0;  // us
  std::map<std::string, double> slower = defaults;
  slower.at("launch") += kLonger;
  // Each parameter's gradient is one all-reduce, and one at a time is in flight.
  const std::size_t calls = load_model(request.costs.model).parameters.size();
  CHECK(step_with(slower) - without == Approx(1e-6 * kLonger * static_cast<double>(calls)));
}

TEST_CASE("unknown GPUs, or GPUs of two kinds, are errors before anything is measured", "[nccl]") {
  {
    const Named named("GPU X", "GPU X");
    CHECK_THROWS_WITH(calibrate(),
                      Catch::Contains("this job: device 'GPU X' is none of") && Catch::Contains("h100-sxm"));
    CHECK(calibrate("h100-sxm").calibration.nccl.device == "h100-sxm");
  }
  const Named named(kH100, "GPU X");
  CHECK_THROWS_WITH(calibrate(), Catch::Contains("rank 1 has a GPU 'GPU X', rank 0 '" + kH100 + "'"));
}

TEST_CASE("a rank that is lost during a calibration is named with the operation", "[nccl]") {
  const Named named(kH100, kH100);
  CHECK_THROWS_WITH(calibrate(
                        "",
                        [](int rank) {
                          if (rank == 0) return;
                          std::this_thread::sleep_for(6s);  // alive and silent
                          throw RunError("rank 1 gives up");
                        },
                        3s),
                    Catch::Contains("rank 0: all_reduce failed: rank 1 did not answer within 3.00 s"));
}

}  // namespace stepcast::nccl_calibrate_test
