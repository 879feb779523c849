#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runner/gloo/gloo_bytes.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::backend_groups_test {

namespace {

Array array(std::vector<float>& values) { return {values.data(), values.size(), DataType::kFloat32}; }

std::vector<float> filled(std::size_t count, int value) {
  std::vector<float> values(count, static_cast<float>(value));
  return values;
}

/// What `call` adds to bytes_sent() at this rank.
template <class Call>
std::uint64_t sent_by(Backend& backend, Call call) {
  const std::uint64_t before = backend.bytes_sent();
  call();
  return backend.bytes_sent() - before;
}

void expect_equal(std::uint64_t actual, std::uint64_t expected, const std::string& what) {
  expect(actual == expected,
         what + " sent " + std::to_string(actual) + " B instead of " + std::to_string(expected));
}

}  // namespace

TEST_CASE("groups {0, 2} and {1, 3} and the whole job all-reduce at the same time", "[backend]") {
  as_ranks(4, [](Backend& backend) {
    const int rank = backend.rank();
    const std::vector<int> members{rank % 2, rank % 2 + 2};
    const auto group = backend.subgroup("replicas", members);
    expect(group->world_size() == 2 && group->rank() == rank / 2, "a rank's place in its group");
    constexpr std::size_t kCount = 300'000;
    for (int round = 0; round < 5; ++round) {
      std::vector<float> in_all = filled(kCount, rank);
      std::vector<float> in_group = filled(kCount, rank);
      // Not in the same order everywhere: the two have queues of their own.
      std::vector<WorkPtr> works;
      if (rank < 2) works.push_back(backend.all_reduce(array(in_all)));
      works.push_back(group->all_reduce(array(in_group)));
      if (rank >= 2) works.push_back(backend.all_reduce(array(in_all)));
      for (const WorkPtr& work : works) work->wait();
      expect(in_all == filled(kCount, 6), "the sum over the job");
      expect(in_group == filled(kCount, members[0] + members[1]), "the sum over a group");
    }
  });
}

TEST_CASE(
    "a group of one rank, equal groups made twice, a group in another order and a group of a group work",
    "[backend]") {
  as_ranks(3, [](Backend& backend) {
    const int rank = backend.rank();
    std::vector<float> values = filled(10, rank);
    backend.subgroup("alone", {rank})->all_reduce(array(values))->wait();
    expect(values == filled(10, rank), "all_reduce of one rank");
    const auto first = backend.subgroup("all", {2, 1, 0});
    const auto second = backend.subgroup("all", {2, 1, 0});
    expect(first->rank() == 2 - rank, "rank() is the index in the list");
    first->broadcast(array(values), 0)->wait();
    expect(values == filled(10, 2), "broadcast from the first of the list");
    second->all_reduce(array(values))->wait();
    expect(values == filled(10, 6), "all_reduce of the second group");
    if (first->rank() < 2) {
      const auto inner = first->subgroup("inner", {1, 0});
      std::vector<float> own = filled(10, rank);
      const int peer = 1 - inner->rank();
      std::vector<float> theirs(10);
      const WorkPtr received = inner->recv(array(theirs), peer, 0);
      inner->send(array(own), peer, 0)->wait();
      received->wait();
      expect(theirs == filled(10, 3 - rank), "message in a group of a group");
    }
  });
}

TEST_CASE("errors of a group name ranks by their numbers in the job", "[backend]") {
  std::string message;
  as_ranks(4, [&](Backend& backend) {
    if (backend.rank() % 2 == 0) return;
    auto group = backend.subgroup("odd", {1, 3});
    if (backend.rank() == 3) return;
    float value = 0.0F;
    try {
      group->recv({&value, 1, DataType::kFloat32}, 1, 0)->wait();
    } catch (const RunError& error) {
      message = error.what();
    }
  });
  CHECK_THAT(message, Catch::Contains("rank 1: recv from rank 3 failed") &&
                          Catch::Contains("rank 3 closed the connection"));
}

TEST_CASE("bytes_sent is what each algorithm sends: all_reduce 2 (n - 1)/n of the message, and so on",
          "[backend]") {
  const int world_size = GENERATE(1, 2, 3, 4);
  as_ranks(world_size, [](Backend& backend) {
    const auto n = static_cast<std::uint64_t>(backend.world_size());
    const bool root = backend.rank() == backend.world_size() - 1;
    constexpr std::size_t kCount = 12'000;
    constexpr std::uint64_t kBytes = kCount * sizeof(float);
    std::vector<float> own(kCount);
    std::vector<float> joined(kCount * n);
    const int last = backend.world_size() - 1;
    expect_equal(sent_by(backend, [&] { backend.all_reduce(array(own))->wait(); }), 2 * (n - 1) * kBytes / n,
                 "all_reduce");
    expect_equal(sent_by(backend, [&] { backend.all_gather(array(own), array(joined))->wait(); }),
                 (n - 1) * kBytes, "all_gather");
    expect_equal(sent_by(backend, [&] { backend.reduce_scatter(array(joined), array(own))->wait(); }),
                 (n - 1) * kBytes, "reduce_scatter");
    std::vector<float> blocks(kCount * n);
    expect_equal(sent_by(backend, [&] { backend.all_to_all(array(joined), array(blocks))->wait(); }),
                 (n - 1) * kBytes, "all_to_all");
    std::vector<float> theirs(kCount);
    expect_equal(sent_by(backend, [&] { backend.shift(array(own), array(theirs))->wait(); }),
                 n > 1 ? kBytes : 0, "shift");
    expect_equal(sent_by(backend, [&] { backend.gather(array(own), array(joined), last)->wait(); }),
                 root ? 0 : kBytes, "gather");
    std::vector<Array> pieces(root ? n : 0, array(own));
    expect_equal(sent_by(backend, [&] { backend.scatter(pieces, array(own), last)->wait(); }),
                 root ? (n - 1) * kBytes : 0, "scatter");
    expect_equal(sent_by(backend, [&] { backend.barrier(); }), 0, "barrier");
    if (n < 2) return;
    const int peer = (backend.rank() + 1) % backend.world_size();
    std::vector<float> in(kCount);
    const auto exchange = [&] {
      const WorkPtr received = backend.recv(array(in), (backend.rank() + last) % backend.world_size(), 1);
      backend.send(array(own), peer, 1)->wait();
      received->wait();
    };
    expect_equal(sent_by(backend, exchange), kBytes, "send");
    const auto group = backend.subgroup("all", n == 2   ? std::vector<int>{0, 1}
                                               : n == 3 ? std::vector<int>{0, 1, 2}
                                                        : std::vector<int>{0, 1, 2, 3});
    expect_equal(sent_by(backend, [&] { group->all_gather(array(own), array(joined))->wait(); }),
                 (n - 1) * kBytes, "all_gather of a group");
    expect_equal(group->bytes_sent(), (n - 1) * kBytes, "the group itself");
  });
}

TEST_CASE("over all ranks broadcast sends (n - 1) S, and root ceil(log2 n) S of them", "[backend]") {
  for (int ranks = 2; ranks <= 9; ++ranks)
    for (int root = 0; root < ranks; ++root) {
      std::uint64_t total = 0;
      for (int rank = 0; rank < ranks; ++rank)
        total += gloo_bytes_sent({CollectiveKind::kBroadcast, 1000, root}, rank, ranks);
      CAPTURE(ranks, root);
      CHECK(total == 1000UL * static_cast<std::uint64_t>(ranks - 1));
      CHECK(gloo_bytes_sent({CollectiveKind::kBroadcast, 1000, root}, root, ranks) ==
            1000UL * (ranks > 8   ? 4
                      : ranks > 4 ? 3
                      : ranks > 2 ? 2
                                  : 1));
    }
}

TEST_CASE("an all_reduce of a few elements over many ranks sends 2 (n - 1) times its bytes in all",
          "[backend]") {
  for (const int ranks : {2, 3, 5, 8})
    for (const std::size_t elements : {1U, 2U, 7U, 1000U, 700'001U}) {
      std::uint64_t total = 0;
      for (int rank = 0; rank < ranks; ++rank)
        total += gloo_bytes_sent({CollectiveKind::kAllReduce, 4 * elements, 0, 4}, rank, ranks);
      CAPTURE(ranks, elements);
      CHECK(total == 8 * elements * static_cast<unsigned>(ranks - 1));
    }
  // One element: rank 0 keeps it (block 0) after the others' sums; in the all-gather rank 1 does not pass it
  // on.
  CHECK(gloo_bytes_sent({CollectiveKind::kAllReduce, 4, 0, 4}, 0, 3) == 4);
  CHECK(gloo_bytes_sent({CollectiveKind::kAllReduce, 4, 0, 4}, 1, 3) == 4);
  CHECK(gloo_bytes_sent({CollectiveKind::kAllReduce, 4, 0, 4}, 2, 3) == 8);
}

}  // namespace stepcast::backend_groups_test
