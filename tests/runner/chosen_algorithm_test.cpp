#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "sim/collectives/algorithm.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::chosen_algorithm_test {

namespace {

/// Small whole numbers: sums over ranks are exact in float.
float contribution(int rank, std::size_t i) {
  return static_cast<float>(static_cast<std::size_t>(rank + 1) * (i % 13 + 1));
}

/// One all-reduce of `count` floats, and what this rank sent for it against the closed form.
void check_all_reduce(Backend& backend, const Algorithm& algorithm, std::size_t count) {
  const int ranks = backend.world_size();
  const std::string what = algorithm_name(algorithm) + " of " + std::to_string(count) + " floats over " +
                           std::to_string(ranks) + " ranks";
  std::vector<float> own(count);
  for (std::size_t i = 0; i < count; ++i) own[i] = contribution(backend.rank(), i);
  const std::uint64_t before = backend.bytes_sent();
  backend.all_reduce({own.data(), count, DataType::kFloat32})->wait();
  for (std::size_t i = 0; i < count; ++i)
    expect(own[i] == contribution(0, i) * static_cast<float>(ranks * (ranks + 1)) / 2.0F, what);
  const CollectiveCall call{Bytes(4.0 * static_cast<double>(count)), ranks};
  const double sent = static_cast<double>(backend.bytes_sent() - before);
  const double rounding = 4.0 * algorithm.steps(call, backend.rank());  // an element per message
  expect(std::abs(sent - algorithm.sent(call, backend.rank()).count()) <= rounding, "bytes of " + what);
}

/// Element i of the block that rank `from` has for rank `to`.
float parcel(int from, int to, std::size_t i) {
  return static_cast<float>(10'000 * from + 100 * to) + static_cast<float>(i % 17);
}

void check_all_to_all(Backend& backend, const std::string& name, std::size_t block) {
  const auto ranks = static_cast<std::size_t>(backend.world_size());
  std::vector<float> in(ranks * block);
  std::vector<float> out(ranks * block);
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = parcel(backend.rank(), static_cast<int>(i / block), i % block);
  backend
      .all_to_all({in.data(), in.size(), DataType::kFloat32}, {out.data(), out.size(), DataType::kFloat32})
      ->wait();
  const std::string what = name + " of blocks of " + std::to_string(block);
  for (std::size_t i = 0; i < out.size(); ++i)
    expect(out[i] == parcel(static_cast<int>(i / block), backend.rank(), i % block), what);
}

TEST_CASE("every all-reduce that can be chosen adds up for real, over 2, 3 and 4 ranks") {
  for (const std::string name : {"ring", "halving_doubling", "double_binary_tree"})
    for (const int ranks : {2, 3, 4}) {
      const AlgorithmChoice choice = parse_algorithms("all_reduce=" + name, "gloo");
      const Algorithm& algorithm = algorithm_for(CollectiveKind::kAllReduce, "gloo", choice);
      as_ranks(ranks,
               [&](Backend& backend) {
                 for (const std::size_t count : {1U, 7U, 1000U, 300'001U})
                   check_all_reduce(backend, algorithm, count);
                 // Two in flight have tags of their own.
                 std::vector<double> first(5000, 1.0);
                 std::vector<double> second(5000, 2.0);
                 const WorkPtr one = backend.all_reduce({first.data(), first.size(), DataType::kFloat64});
                 backend.all_reduce({second.data(), second.size(), DataType::kFloat64})->wait();
                 one->wait();
                 expect(first.back() == 1.0 * ranks && second.front() == 2.0 * ranks,
                        "two all-reduces at once");
               },
               {.algorithms = choice});
    }
}

TEST_CASE("every all-to-all puts each block in its place for real, over 2, 3 and 4 ranks") {
  for (const std::string name : {"direct", "pairwise", "ring"})
    for (const int ranks : {2, 3, 4})
      as_ranks(ranks,
               [&](Backend& backend) {
                 for (const std::size_t block : {1U, 1000U, 100'001U}) check_all_to_all(backend, name, block);
               },
               {.algorithms = parse_algorithms("all_to_all=" + name, "gloo")});
}

TEST_CASE("a group keeps the algorithm that was chosen for the whole job") {
  const AlgorithmChoice choice = parse_algorithms("all_reduce=halving_doubling", "gloo");
  as_ranks(3,
           [&](Backend& backend) {
             if (backend.rank() == 1) return;
             const auto group = backend.subgroup("ends", {0, 2});
             check_all_reduce(*group, algorithm_for(CollectiveKind::kAllReduce, "gloo", choice), 4096);
           },
           {.algorithms = choice});
}

TEST_CASE("a maximum runs by the algorithm that was chosen for all-reduces, and counts its bytes") {
  const AlgorithmChoice choice = parse_algorithms("all_reduce=halving_doubling", "gloo");
  const Algorithm& algorithm = algorithm_for(CollectiveKind::kAllReduce, "gloo", choice);
  as_ranks(4,
           [&](Backend& backend) {
             std::vector<float> own(1000, static_cast<float>(backend.rank()));
             const std::uint64_t before = backend.bytes_sent();
             backend.all_reduce_maximum({own.data(), own.size(), DataType::kFloat32})->wait();
             expect(own.front() == 3.0F && own.back() == 3.0F, "maximum");
             const CollectiveCall call{Bytes(4000.0), 4};
             expect(backend.bytes_sent() - before == algorithm.sent(call, backend.rank()).count(),
                    "bytes of a maximum");
           },
           {.algorithms = choice});
}

// In the tree of sim/collectives 4 serves nobody; were it another one, in which 4 passes the array on to 5
// and 6, these two would wait for it until the connection times out.
TEST_CASE(
    "Gloo's broadcast to 8 runs down the tree of the forecast: all others end while rank 4 stays away") {
  std::promise<void> others_done;
  std::shared_future<void> done = others_done.get_future().share();
  std::atomic<int> left{6};  // 1, 2, 3, 5, 6, 7: root's own call includes its message to 4
  as_ranks(8, [&](Backend& backend) {
    std::vector<float> array(1000, backend.rank() == 0 ? 3.0F : 0.0F);
    if (backend.rank() == 4)
      expect(done.wait_for(std::chrono::seconds(50)) == std::future_status::ready,
             "somebody waits for rank 4");
    backend.broadcast({array.data(), array.size(), DataType::kFloat32}, 0)->wait();
    expect(array.back() == 3.0F, "broadcast");
    if (backend.rank() != 4 && backend.rank() != 0 && --left == 0) others_done.set_value();
  });
}

}  // namespace

}  // namespace stepcast::chosen_algorithm_test
