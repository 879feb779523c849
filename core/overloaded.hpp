#pragma once

namespace stepcast {

/// A visitor composed of one function per alternative: `std::visit(Overloaded{[](int) {...}, [](float)
/// {...}}, value)`. An alternative without a function does not compile.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace stepcast
