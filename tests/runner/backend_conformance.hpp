#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/runner/as_ranks.hpp"

/// What every backend does, checked by each of the ranks that call it: by gloo, by nccl over the stand-in for
/// its driver, and by nccl on GPUs. They throw, as Catch2 v2 assertions are not safe in threads.
namespace stepcast {

template <class T>
constexpr DataType kTypeOf = DataType::kFloat32;
template <>
constexpr DataType kTypeOf<double> = DataType::kFloat64;
template <>
constexpr DataType kTypeOf<std::int64_t> = DataType::kInt64;
template <>
constexpr DataType kTypeOf<std::uint8_t> = DataType::kUInt8;

/// Values in the memory of a backend, which may be a device's.
template <class T>
class Placed {
 public:
  Placed(Backend& backend, const std::vector<T>& values)
      : backend_(&backend), count_(values.size()), memory_(backend.memory(bytes())) {
    backend.copy(memory_.get(), values.data(), bytes());
  }
  Placed(Backend& backend, std::size_t count) : Placed(backend, std::vector<T>(count)) {}

  [[nodiscard]] Array array() const { return {memory_.get(), count_, kTypeOf<T>}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> result(count_);
    backend_->copy(result.data(), memory_.get(), bytes());
    return result;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }

  Backend* backend_;
  std::size_t count_;
  std::shared_ptr<void> memory_;
};

/// Element i of what rank r contributes: small enough that four ranks' sum fits a byte.
template <class T>
T contribution(int rank, std::size_t i) {
  return static_cast<T>((static_cast<std::size_t>(rank) + 1) * (i % 7 + 1));
}

template <class T>
std::vector<T> contributions(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = contribution<T>(rank, i);
  return values;
}

template <class T>
std::vector<T> sum_over_ranks(int world_size, std::size_t count) {
  std::vector<T> values(count, T{0});
  for (int rank = 0; rank < world_size; ++rank)
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] + contribution<T>(rank, i));
  return values;
}

template <class T>
void expect_equal(const std::vector<T>& actual, const std::vector<T>& expected, const std::string& what) {
  if (actual != expected) throw std::runtime_error(what + " gave a wrong result");
}

/// Every collective on `count` elements per rank; every rank contributes different values.
template <class T>
void check_collectives(Backend& backend, std::size_t count) {
  const int rank = backend.rank();
  const int world_size = backend.world_size();
  const auto parts = static_cast<std::size_t>(world_size);
  std::vector<T> joined;
  for (int r = 0; r < world_size; ++r)
    for (const T value : contributions<T>(r, count)) joined.push_back(value);
  const int root = world_size - 1;

  const Placed<T> summed(backend, contributions<T>(rank, count));
  backend.all_reduce(summed.array())->wait();
  expect_equal(summed.values(), sum_over_ranks<T>(world_size, count), "all_reduce");

  const Placed<T> largest(backend, contributions<T>(rank, count));
  backend.all_reduce_maximum(largest.array())->wait();
  expect_equal(largest.values(), contributions<T>(world_size - 1, count), "all_reduce_maximum");

  const Placed<T> own(backend, contributions<T>(rank, count));
  backend.broadcast(own.array(), root)->wait();
  expect_equal(own.values(), contributions<T>(root, count), "broadcast");

  backend.copy(own.array().data, contributions<T>(rank, count).data(), own.array().bytes());
  const Placed<T> all(backend, rank == root ? count * parts : 0);
  backend.gather(own.array(), all.array(), root)->wait();
  if (rank == root) expect_equal(all.values(), joined, "gather");

  std::vector<Array> pieces;
  const Placed<T> source(backend, joined);
  for (std::size_t r = 0; rank == root && r < parts; ++r)
    pieces.push_back({static_cast<T*>(source.array().data) + r * count, count, kTypeOf<T>});
  const Placed<T> piece(backend, count);
  backend.scatter(pieces, piece.array(), root)->wait();
  expect_equal(piece.values(), contributions<T>(rank, count), "scatter");

  const Placed<T> gathered(backend, count * parts);
  backend.all_gather(own.array(), gathered.array())->wait();
  expect_equal(gathered.values(), joined, "all_gather");

  const Placed<T> whole(backend, contributions<T>(rank, count * parts));
  const Placed<T> reduced(backend, count);
  backend.reduce_scatter(whole.array(), reduced.array())->wait();
  const std::vector<T> total = sum_over_ranks<T>(world_size, count * parts);
  const auto begin = total.begin() + static_cast<std::ptrdiff_t>(count) * rank;
  expect_equal(reduced.values(), std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count)),
               "reduce_scatter");
  expect_equal(whole.values(), contributions<T>(rank, count * parts), "reduce_scatter's input");

  const Placed<T> blocks(backend, count * parts);
  backend.all_to_all(whole.array(), blocks.array())->wait();
  std::vector<T> mine;  // block `rank` of everybody
  for (int r = 0; r < world_size; ++r) {
    const std::vector<T> theirs = contributions<T>(r, count * parts);
    const auto from = theirs.begin() + static_cast<std::ptrdiff_t>(count) * rank;
    mine.insert(mine.end(), from, from + static_cast<std::ptrdiff_t>(count));
  }
  expect_equal(blocks.values(), mine, "all_to_all");

  const Placed<T> passed_on(backend, contributions<T>(rank, count));
  const Placed<T> before(backend, count);
  backend.shift(passed_on.array(), before.array())->wait();
  expect_equal(before.values(), contributions<T>((rank + world_size - 1) % world_size, count), "shift");
}

/// The same over counts around what libraries cut messages at, and over types.
inline void check_all_collectives(Backend& backend) {
  for (const std::size_t count : {0U, 1U, 2U, 5U, 1000U, 700'001U}) check_collectives<float>(backend, count);
  for (const std::size_t count : {1U, 4097U}) {
    check_collectives<double>(backend, count);
    check_collectives<std::int64_t>(backend, count);
    check_collectives<std::uint8_t>(backend, count);
  }
}

/// Calls issued one after the other, none waited for in between, do not mix their data, and end after they
/// begin.
inline void check_calls_in_flight(Backend& backend) {
  constexpr std::size_t kCalls = 20;
  constexpr std::size_t kCount = 10'000;
  std::vector<Placed<float>> arrays;
  std::vector<WorkPtr> works;
  for (std::size_t call = 0; call < kCalls; ++call)
    arrays.emplace_back(backend, contributions<float>(backend.rank() + static_cast<int>(call), kCount));
  for (const Placed<float>& values : arrays) works.push_back(backend.all_reduce(values.array()));
  for (std::size_t call = 0; call < kCalls; ++call) {
    works[call]->wait();
    std::vector<float> expected(kCount, 0.0F);
    for (int rank = 0; rank < backend.world_size(); ++rank)
      for (std::size_t i = 0; i < kCount; ++i)
        expected[i] += contribution<float>(rank + static_cast<int>(call), i);
    expect_equal(arrays[call].values(), expected, "all_reduce " + std::to_string(call));
    expect(works[call]->ended() >= works[call]->started(), "a call ended before it began");
  }
}

/// Messages both ways between all pairs, receives posted first, arrive in the order in which they are sent.
inline void check_messages(Backend& backend) {
  constexpr int kMessages = 3;
  const int rank = backend.rank();
  const auto value = [](int from, int to, int message) {
    return static_cast<float>(100 * from + 10 * to + message);
  };
  std::vector<std::tuple<int, int, Placed<float>, WorkPtr>> received;
  std::vector<Placed<float>> sent;
  std::vector<WorkPtr> sends;
  for (int peer = 0; peer < backend.world_size(); ++peer)
    for (int message = 0; peer != rank && message < kMessages; ++message) {
      const Placed<float> place(backend, static_cast<std::size_t>(1000 + message));
      received.emplace_back(peer, message, place,
                            backend.recv(place.array(), peer, static_cast<std::uint32_t>(message)));
    }
  for (int peer = backend.world_size() - 1; peer >= 0; --peer)
    for (int message = 0; peer != rank && message < kMessages; ++message) {
      sent.emplace_back(
          backend, std::vector<float>(static_cast<std::size_t>(1000 + message), value(rank, peer, message)));
      sends.push_back(backend.send(sent.back().array(), peer, static_cast<std::uint32_t>(message)));
    }
  for (const auto& [peer, message, place, work] : received) {
    work->wait();
    expect_equal(place.values(),
                 std::vector<float>(static_cast<std::size_t>(1000 + message), value(peer, rank, message)),
                 "message " + std::to_string(message) + " from rank " + std::to_string(peer));
  }
  for (const WorkPtr& work : sends) work->wait();
}

/// Groups work concurrently with each other and with the world, also if ranks issue in different orders.
/// \pre an even number of ranks
inline void check_groups(Backend& backend) {
  constexpr std::size_t kCount = 300'000;
  const int rank = backend.rank();
  const int world_size = backend.world_size();
  std::vector<int> members;
  float group_sum = 0.0F;
  float job_sum = 0.0F;
  for (int r = 0; r < world_size; ++r) {
    job_sum += static_cast<float>(r);
    if (r % 2 != rank % 2) continue;
    members.push_back(r);
    group_sum += static_cast<float>(r);
  }
  const auto group = backend.subgroup("alike", members);
  expect(group->rank() == rank / 2 && group->world_size() == world_size / 2, "a rank's place in its group");
  const std::vector<float> own(kCount, static_cast<float>(rank));
  for (int round = 0; round < 3; ++round) {
    const Placed<float> in_all(backend, own);
    const Placed<float> in_group(*group, own);
    std::vector<WorkPtr> works;
    if (rank < 2) works.push_back(backend.all_reduce(in_all.array()));
    works.push_back(group->all_reduce(in_group.array()));
    if (rank >= 2) works.push_back(backend.all_reduce(in_all.array()));
    for (const WorkPtr& work : works) work->wait();
    expect_equal(in_all.values(), std::vector<float>(kCount, job_sum), "the sum over the job");
    expect_equal(in_group.values(), std::vector<float>(kCount, group_sum), "the sum over a group");
  }
}

/// A task handed to the communication thread runs there, and its error comes out of wait().
inline void check_tasks(Backend& backend) {
  std::thread::id where;
  backend.submit([&where] { where = std::this_thread::get_id(); })->wait();
  expect(where != std::thread::id() && where != std::this_thread::get_id(), "a task runs on another thread");
  bool thrown = false;
  try {
    backend.submit([] { throw RunError("no"); })->wait();
  } catch (const RunError&) {
    thrown = true;
  }
  expect(thrown, "a task's error comes out of wait()");
}

}  // namespace stepcast
