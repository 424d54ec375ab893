// may_overlap, same_view and check_output against every byte and every element.

#include <algorithm>
#include <set>
#include <vector>

#include "core/view.h"
#include "input.h"

namespace posenc::fuzz {
namespace {

constexpr int64_t kBase = int64_t{1} << 40;

Array draw_view(Input& input) {
  Array array;
  array.dtype = static_cast<Dtype>(input.below(12));
  array.dtype_name = name_of(array.dtype);
  array.rank = input.below(5);
  draw_axes(input, array, 5);
  array.data = reinterpret_cast<void*>(kBase + static_cast<int8_t>(input.byte()));
  return array;
}

// Addresses of all elements.
std::vector<int64_t> elements(const Array& array) {
  std::vector<int64_t> all;
  if (array.empty()) return all;
  int64_t index[kMaxRank] = {};
  for (;;) {
    int64_t at = reinterpret_cast<int64_t>(array.data);
    for (int i = 0; i < array.rank; ++i) {
      if (index[i] > 0) at += index[i] * array.stride[i] * item_size(array.dtype);
    }
    all.push_back(at);
    int axis = array.rank - 1;
    while (axis >= 0 && ++index[axis] == array.shape[axis]) index[axis--] = 0;
    if (axis < 0) return all;
  }
}

bool overlap(const Array& a, const Array& b) {
  std::vector<int64_t> bytes;
  for (const int64_t at : elements(a)) {
    for (int64_t i = 0; i < item_size(a.dtype); ++i) bytes.push_back(at + i);
  }
  std::sort(bytes.begin(), bytes.end());
  for (const int64_t at : elements(b)) {
    const auto found = std::lower_bound(bytes.begin(), bytes.end(), at);
    if (found != bytes.end() && *found < at + item_size(b.dtype)) return true;
  }
  return false;
}

// Whether each axis steps over all that the axes with smaller strides reach.
bool nested(const Array& array) {
  std::vector<std::pair<int64_t, int64_t>> axes;
  for (int i = 0; i < array.rank; ++i) {
    if (array.shape[i] > 1) axes.emplace_back(std::llabs(array.stride[i]), array.shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 1;
  for (const auto& [stride, count] : axes) {
    if (stride < reach) return false;
    reach += stride * (count - 1);
  }
  return true;
}

void try_views(Input& input) {
  const Array a = draw_view(input), b = draw_view(input);
  POSENC_FUZZ_EXPECT(may_overlap(a, b) == overlap(a, b), "%s %s and %s %s", shape_string(a).c_str(),
                     to_string(a.stride, a.rank).c_str(), shape_string(b).c_str(),
                     to_string(b.stride, b.rank).c_str());
  POSENC_FUZZ_EXPECT(may_overlap(a, b) == may_overlap(b, a), "order");
  if (same_view(a, b)) {
    POSENC_FUZZ_EXPECT(elements(a) == elements(b), "the same view shows other elements");
  }
  POSENC_FUZZ_EXPECT(same_view(a, a), "itself");
  bool accepted = true;
  try {
    check_output("f", "out", a, a.shape, a.rank, a);
  } catch (const Error&) {
    accepted = false;
  }
  const std::vector<int64_t> all = elements(a);
  const bool distinct = std::set<int64_t>(all.begin(), all.end()).size() == all.size();
  POSENC_FUZZ_EXPECT(!accepted || distinct, "elements share memory: shape %s, strides %s",
                     shape_string(a).c_str(), to_string(a.stride, a.rank).c_str());
  POSENC_FUZZ_EXPECT(accepted || a.empty() || !nested(a), "refused: shape %s, strides %s",
                     shape_string(a).c_str(), to_string(a.stride, a.rank).c_str());
}

}  // namespace
}  // namespace posenc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  posenc::fuzz::Input input(data, size);
  posenc::fuzz::try_views(input);
  return 0;
}
