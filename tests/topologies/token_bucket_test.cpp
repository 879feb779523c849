#include "topologies/token_bucket.hpp"

#include <catch2/catch.hpp>

namespace stepcast::token_bucket_test {

TEST_CASE("a lab's segment is what its slowest link carries in 250 us, within two frames and 64 KiB") {
  CHECK(TokenBuckets(BytesPerSecond(1e6)).segment() == Bytes(2.0 * 1514.0));
  CHECK(TokenBuckets(BytesPerSecond(1448e5)).segment().count() == Approx(1514e5 * 250e-6));
  CHECK(TokenBuckets(BytesPerSecond(1e9)).segment() == Bytes(65'536.0));
}

TEST_CASE("a lab's bucket holds what its link carries in 250 us, and two segments at least") {
  const TokenBuckets buckets(BytesPerSecond(1448e5));
  CHECK(buckets.depth(BytesPerSecond(1448e5)) == 2.0 * buckets.segment());
  CHECK(buckets.depth(BytesPerSecond(1448e6)).count() == Approx(1514e6 * 250e-6));
  CHECK(payload_of(buckets.depth(BytesPerSecond(1448e5))).count() == Approx(1448e5 * 500e-6));
}

}  // namespace stepcast::token_bucket_test
