#include "runner/backend/message_walk.hpp"

#include <algorithm>

namespace stepcast {

MessageWalk::MessageWalk(void* begin, std::size_t count, DataType type)
    : begin_(static_cast<char*>(begin)),
      count_(count),
      type_(type),
      region_(region_bytes(count * size_of(type))) {}

Array MessageWalk::next() {
  const Array message{begin_ + offset_, count_, type_};
  offset_ = offset_ + 2 * message.bytes() <= region_ ? offset_ + message.bytes() : 0;
  return message;
}

std::size_t MessageWalk::region_bytes(std::size_t message_bytes) {
  constexpr std::size_t kMessages = 32;
  constexpr std::size_t kMost = std::size_t{256} << 20U;
  return std::max(message_bytes, std::min(kMessages * message_bytes, kMost));
}

}  // namespace stepcast
