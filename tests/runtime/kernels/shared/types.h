#pragma once

namespace tiny {

using u32 = unsigned int;
using u64 = unsigned long long;

}  // namespace tiny
