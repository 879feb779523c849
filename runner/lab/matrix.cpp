#include "runner/lab/matrix.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace stepcast {
namespace {

/// Small batches: steps shall be short and communication a large part of them.
struct ModelChoice {
  const char* name;
  const char* model;
  int batch;
};
constexpr ModelChoice kVgg{"vgg", "vgg11-bn-cifar", 8};
constexpr ModelChoice kResnet{"resnet", "resnet18-cifar", 4};
/// Computes long enough to hide the buckets that are ready early.
constexpr ModelChoice kLargerResnet{"resnet-8", "resnet18-cifar", 8};
constexpr ModelChoice kSimple{"simple", "simple-cnn", 32};
constexpr ModelChoice kBert{"bert", "bert-base:layers=8,hidden=128,sequence=64", 8};

struct StrategyChoice {
  std::string name;  ///< in file names
  std::vector<std::string> options;
};

StrategyChoice plain(const std::string& name) { return {name, {"--strategy", name}}; }

StrategyChoice ddp(int mebi) {
  const std::string cap = std::to_string(mebi) + "MiB";
  return {"ddp-" + cap, {"--strategy", "ddp", "--bucket-cap", cap}};
}

StrategyChoice fsdp() { return {"fsdp", {"--strategy", "fsdp", "--sharding", "full_shard"}}; }

StrategyChoice pipeline(const std::string& split, const std::string& schedule, int micro_batches) {
  const std::string count = std::to_string(micro_batches);
  return {"pipeline-" + split + "-" + schedule + "-" + count,
          {"--strategy", "pipeline", "--split", split, "--schedule", schedule, "--micro-batches", count}};
}

struct Rate {
  std::string text;
  double bytes_per_s;
};
const Rate& rate_of(const std::string& text) {
  static const std::vector<Rate> kRates{
      {"100Mb/s", 12.5e6}, {"1Gb/s", 125e6}, {"2.5Gb/s", 312.5e6}, {"5Gb/s", 625e6}};
  return *std::find_if(kRates.begin(), kRates.end(), [&](const Rate& rate) { return rate.text == text; });
}

class Matrix {
 public:
  void add(const ModelChoice& model, const std::vector<StrategyChoice>& strategies, const std::string& rate,
           const std::vector<int>& hosts, const std::string& cluster = "lab-star") {
    for (const int count : hosts)
      for (const StrategyChoice& strategy : strategies) add_one(model, strategy, rate, count, cluster);
  }
  /// What is added from now on computes for real.
  void compute_for_real() { compute_ = "real"; }
  [[nodiscard]] std::vector<LabExperiment> take() { return std::move(experiments_); }

 private:
  void add_one(const ModelChoice& model, const StrategyChoice& strategy, const std::string& rate, int hosts,
               const std::string& cluster) {
    std::string short_rate = rate;
    std::erase(short_rate, '/');
    LabExperiment experiment;
    experiment.name = std::string(model.name) + "." + strategy.name + "." + cluster + "-" +
                      std::to_string(hosts) + "-" + short_rate;
    if (compute_ == "real") experiment.name += ".real";
    experiment.cluster = cluster + ":hosts=" + std::to_string(hosts) + ",rate=" + rate;
    experiment.hosts = hosts;
    experiment.model = model.model;
    experiment.batch = model.batch;
    experiment.options = strategy.options;
    experiment.compute = compute_;
    experiment.link_rate_bytes_per_s = rate_of(rate).bytes_per_s;
    experiment.uniform = cluster == "lab-star";
    experiments_.push_back(std::move(experiment));
  }

  std::string compute_ = "replayed";
  std::vector<LabExperiment> experiments_;
};

/// Twelve of 2 and 4 hosts that touch every strategy, rate and kind of cluster.
std::vector<LabExperiment> quick_matrix() {
  Matrix matrix;
  matrix.add(kSimple, {plain("all_reduce"), ddp(1), plain("gather_scatter")}, "100Mb/s", {2});
  matrix.add(kSimple, {plain("all_reduce"), plain("gather_scatter")}, "1Gb/s", {4});
  matrix.add(kBert, {pipeline("4-4", "1f1b", 4), ddp(5)}, "1Gb/s", {2});
  matrix.add(kBert, {fsdp()}, "2.5Gb/s", {2});
  matrix.add(kBert, {pipeline("2-2-2-2", "gpipe", 4)}, "1Gb/s", {4});
  matrix.add(kBert, {ddp(5)}, "1Gb/s", {4}, "lab-slow-link");
  matrix.add(kBert, {ddp(5)}, "1Gb/s", {4}, "lab-two-racks");
  matrix.add(kBert, {ddp(5)}, "1Gb/s", {4}, "lab-straggler");
  return matrix.take();
}

void add_data_parallel(Matrix& matrix) {
  matrix.add(kVgg, {plain("all_reduce"), ddp(1), ddp(5), ddp(25), fsdp()}, "1Gb/s", {2, 4, 8});
  matrix.add(kResnet, {plain("all_reduce"), ddp(5), ddp(25)}, "1Gb/s", {2, 4, 8});
  matrix.add(kVgg, {plain("gather_scatter")}, "1Gb/s", {2});
  matrix.add(kResnet, {plain("gather_scatter")}, "1Gb/s", {2});
  matrix.add(kSimple, {plain("gather_scatter"), plain("all_reduce"), ddp(1)}, "1Gb/s", {4, 8});
  matrix.add(kVgg, {plain("all_reduce"), plain("gather_scatter"), ddp(25)}, "2.5Gb/s", {2, 4});
  matrix.add(kResnet, {ddp(5)}, "2.5Gb/s", {2, 4});
  matrix.add(kLargerResnet, {ddp(25), ddp(50)}, "2.5Gb/s", {2});
  matrix.add(kVgg, {plain("all_reduce"), plain("gather_scatter"), ddp(25), fsdp()}, "5Gb/s", {2});
  matrix.add(kResnet, {ddp(1)}, "5Gb/s", {2});
  matrix.add(kSimple, {plain("all_reduce"), ddp(1)}, "100Mb/s", {2, 4, 8});
  matrix.add(kSimple, {plain("gather_scatter")}, "100Mb/s", {2, 4});
}

void add_pipelines(Matrix& matrix) {
  matrix.add(kBert, {pipeline("4-4", "gpipe", 4), pipeline("4-4", "1f1b", 4), pipeline("6-2", "1f1b", 4)},
             "1Gb/s", {2});
  matrix.add(kBert,
             {pipeline("2-2-2-2", "gpipe", 8), pipeline("2-2-2-2", "1f1b", 8), pipeline("5-1-1-1", "1f1b", 8),
              ddp(25), fsdp()},
             "1Gb/s", {4});
  matrix.add(kBert, {pipeline("2-2-2-2", "gpipe", 8), pipeline("2-2-2-2", "1f1b", 8)}, "100Mb/s", {4});
  matrix.add(kBert, {pipeline("1-1-1-1-1-1-1-1", "gpipe", 8), pipeline("1-1-1-1-1-1-1-1", "1f1b", 8)},
             "1Gb/s", {8});
}

void add_other_clusters(Matrix& matrix) {
  matrix.add(kVgg, {ddp(5)}, "2.5Gb/s", {4});
  matrix.add(kVgg, {ddp(5)}, "2.5Gb/s", {4}, "lab-slow-link");
  matrix.add(kLargerResnet, {ddp(25)}, "2.5Gb/s", {2}, "lab-straggler");
  for (const char* cluster : {"lab-slow-link", "lab-two-racks", "lab-straggler"}) {
    matrix.add(kVgg, {plain("all_reduce"), ddp(5)}, "1Gb/s", {4}, cluster);
    matrix.add(kBert, {pipeline("2-2-2-2", "1f1b", 8)}, "1Gb/s", {4}, cluster);
  }
}

void add_real_compute(Matrix& matrix) {
  matrix.compute_for_real();
  matrix.add(kVgg, {plain("all_reduce"), plain("gather_scatter"), ddp(25)}, "1Gb/s", {2});
  matrix.add(kVgg, {plain("all_reduce"), ddp(25)}, "5Gb/s", {2});
  matrix.add(kResnet, {plain("all_reduce"), ddp(5)}, "2.5Gb/s", {2});
  matrix.add(kSimple, {plain("all_reduce"), ddp(1)}, "100Mb/s", {2});
  matrix.add(kBert, {pipeline("4-4", "gpipe", 4), pipeline("4-4", "1f1b", 4), fsdp()}, "1Gb/s", {2});
}

}  // namespace

std::string distance_of(const LabExperiment& experiment) {
  if (!experiment.uniform) return kNewTopology;
  if (experiment.hosts != 2) return kNewWorldSize;
  if (experiment.link_rate_bytes_per_s != kLabCalibrationRate) return kNewRate;
  return kSeenRateSeenSize;
}

std::vector<LabExperiment> lab_matrix(bool quick) {
  if (quick) return quick_matrix();
  Matrix matrix;
  add_data_parallel(matrix);
  add_pipelines(matrix);
  add_other_clusters(matrix);
  add_real_compute(matrix);
  return matrix.take();
}

// A change must be able to cost something: half a link where links are what the step waits for, a slow host
// where it computes most of the time, a larger cap where that leaves more to communicate after the backward
// pass.
std::vector<LabChange> lab_changes() {
  const std::string hidden = "resnet-8.ddp-25MiB.lab-star-2-2.5Gbs";
  return {{"one host's link at half its rate", "vgg.ddp-5MiB.lab-star-4-2.5Gbs",
           "vgg.ddp-5MiB.lab-slow-link-4-2.5Gbs"},
          {"one host computes 1.5 times as long", hidden, "resnet-8.ddp-25MiB.lab-straggler-2-2.5Gbs"},
          {"bucket cap of 50 MiB instead of 25", hidden, "resnet-8.ddp-50MiB.lab-star-2-2.5Gbs"}};
}

}  // namespace stepcast
