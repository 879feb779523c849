#include "runner/backend/backend.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/runner/as_ranks.hpp"

namespace stepcast::backend_test {

namespace {

template <class T>
constexpr DataType kTypeOf = DataType::kFloat32;
template <>
constexpr DataType kTypeOf<double> = DataType::kFloat64;
template <>
constexpr DataType kTypeOf<std::int64_t> = DataType::kInt64;
template <>
constexpr DataType kTypeOf<std::uint8_t> = DataType::kUInt8;

template <class T>
Array array(std::vector<T>& values) {
  return {values.data(), values.size(), kTypeOf<T>};
}

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

/// Throws instead of REQUIRE: Catch2 v2 assertions are not safe in threads.
template <class T>
void expect_equal(const std::vector<T>& actual, const std::vector<T>& expected, const std::string& what) {
  if (actual != expected) throw std::runtime_error(what + " gave a wrong result");
}

/// `count` elements per rank; every rank's part is told apart by its contribution.
template <class T>
void check_collectives(Backend& backend, std::size_t count) {
  const int rank = backend.rank();
  const int world_size = backend.world_size();
  const auto parts = static_cast<std::size_t>(world_size);
  std::vector<T> joined;
  for (int r = 0; r < world_size; ++r)
    for (const T value : contributions<T>(r, count)) joined.push_back(value);
  const int root = world_size - 1;

  std::vector<T> own = contributions<T>(rank, count);
  backend.all_reduce(array(own))->wait();
  expect_equal(own, sum_over_ranks<T>(world_size, count), "all_reduce");

  own = contributions<T>(rank, count);
  backend.broadcast(array(own), root)->wait();
  expect_equal(own, contributions<T>(root, count), "broadcast");

  own = contributions<T>(rank, count);
  std::vector<T> all(rank == root ? count * parts : 0);
  backend.gather(array(own), array(all), root)->wait();
  if (rank == root) expect_equal(all, joined, "gather");

  std::vector<Array> pieces;
  std::vector<T> source = joined;
  for (std::size_t r = 0; rank == root && r < parts; ++r)
    pieces.push_back({source.data() + r * count, count, kTypeOf<T>});
  std::vector<T> piece(count);
  backend.scatter(pieces, array(piece), root)->wait();
  expect_equal(piece, contributions<T>(rank, count), "scatter");

  std::vector<T> gathered(count * parts);
  backend.all_gather(array(own), array(gathered))->wait();
  expect_equal(gathered, joined, "all_gather");

  std::vector<T> whole = contributions<T>(rank, count * parts);
  std::vector<T> reduced(count);
  backend.reduce_scatter(array(whole), array(reduced))->wait();
  const std::vector<T> total = sum_over_ranks<T>(world_size, count * parts);
  const auto begin = total.begin() + static_cast<std::ptrdiff_t>(count) * rank;
  expect_equal(reduced, std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count)), "reduce_scatter");
  expect_equal(whole, contributions<T>(rank, count * parts), "reduce_scatter's input");

  std::vector<T> blocks(count * parts);
  backend.all_to_all(array(whole), array(blocks))->wait();
  std::vector<T> mine;  // block `rank` of everybody
  for (int r = 0; r < world_size; ++r) {
    const std::vector<T> theirs = contributions<T>(r, count * parts);
    const auto from = theirs.begin() + static_cast<std::ptrdiff_t>(count) * rank;
    mine.insert(mine.end(), from, from + static_cast<std::ptrdiff_t>(count));
  }
  expect_equal(blocks, mine, "all_to_all");
}

}  // namespace

TEST_CASE("every collective of gloo gives the exact result at 1, 2, 3 and 4 ranks", "[backend]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  CAPTURE(world_size);
  REQUIRE_NOTHROW(as_ranks(world_size, [](Backend& backend) {
    for (const std::size_t count : {0U, 1U, 2U, 5U, 1000U, 700'001U})
      check_collectives<float>(backend, count);
    for (const std::size_t count : {1U, 4097U}) {
      check_collectives<double>(backend, count);
      check_collectives<std::int64_t>(backend, count);
      check_collectives<std::uint8_t>(backend, count);
    }
  }));
}

TEST_CASE("collectives issued one after the other overlap two at a time without mixing their data",
          "[backend]") {
  REQUIRE_NOTHROW(as_ranks(3, [](Backend& backend) {
    if (backend.collectives_in_flight() != 2) throw std::runtime_error("c10d runs two");
    constexpr std::size_t kCalls = 20;
    std::vector<std::vector<float>> arrays;
    std::vector<WorkPtr> works;
    arrays.reserve(kCalls);
    works.reserve(kCalls);
    for (std::size_t call = 0; call < kCalls; ++call)
      arrays.push_back(contributions<float>(backend.rank() + static_cast<int>(call), 10'000));
    for (std::vector<float>& values : arrays) works.push_back(backend.all_reduce(array(values)));
    for (std::size_t call = 0; call < kCalls; ++call) {
      works[call]->wait();
      std::vector<float> expected(10'000, 0.0F);
      for (int rank = 0; rank < 3; ++rank)
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] += contribution<float>(rank + static_cast<int>(call), i);
      expect_equal(arrays[call], expected, "all_reduce " + std::to_string(call));
      if (works[call]->ended() < works[call]->started())
        throw std::runtime_error("a call ended before it began");
    }
  }));
}

TEST_CASE("messages are told apart by their tags, also when received in another order", "[backend]") {
  REQUIRE_NOTHROW(as_ranks(2, [](Backend& backend) {
    const int peer = 1 - backend.rank();
    std::vector<float> first = contributions<float>(backend.rank(), 5000);
    std::vector<float> second = contributions<float>(backend.rank() + 2, 1);
    std::vector<float> first_in(5000);
    std::vector<float> second_in(1);
    const std::vector<WorkPtr> works{
        backend.recv(array(second_in), peer, 8), backend.recv(array(first_in), peer, 7),
        backend.send(array(first), peer, 7), backend.send(array(second), peer, 8)};
    for (const WorkPtr& work : works) work->wait();
    expect_equal(first_in, contributions<float>(peer, 5000), "tag 7");
    expect_equal(second_in, contributions<float>(peer + 2, 1), "tag 8");
  }));
}

TEST_CASE("a task handed to the communication thread runs there, and its error comes out of wait",
          "[backend]") {
  as_ranks(1, [](Backend& backend) {
    std::thread::id where;
    backend.submit([&] { where = std::this_thread::get_id(); })->wait();
    REQUIRE(where != std::this_thread::get_id());
    REQUIRE_THROWS_AS(backend.submit([] { throw RunError("no"); })->wait(), RunError);
  });
}

}  // namespace stepcast::backend_test
