#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels.h"

namespace posenc::cpu {

std::vector<std::string> available_targets() { return {current_target()}; }
std::string current_target() { return "CUDA"; }
bool set_target(std::string_view name) { return name.empty() || name == current_target(); }
int64_t non_temporal_bytes() { return INT64_MAX; }
void set_non_temporal_bytes(int64_t /*bytes*/) {}

}  // namespace posenc::cpu
