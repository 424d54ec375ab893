// The arguments of a manually boxed operator: it takes them from torch's stack. The core declares
// its options with a for_each, from which the schemas are made too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/torch/tensors.h"

namespace posenc::operators {

// The arguments of an operator as torch passes them, in the order of the schema. The operator owns
// them from the start, so it takes all of them before anything else can fail.
class Stack {
 public:
  Stack(StableIValue* values, uint64_t size) : values_(values), size_(size) {}

  template <typename Value>
  Value take() {
    STD_TORCH_CHECK(taken_ < size_, "posenc_native: the schema has ", size_, " arguments, no more");
    return torch::stable::detail::to<Value>(values_[taken_++]);
  }

  void all_taken() const {
    STD_TORCH_CHECK(taken_ == size_, "posenc_native: the schema has ", size_,
                    " arguments, of which ", taken_, " were taken");
  }

  // Puts the results where the arguments were.
  template <typename... Values>
  void give(const Values&... results) {
    StableIValue* next = values_;
    ((*next++ = torch::stable::detail::from(results)), ...);
  }

 private:
  StableIValue* const values_;
  const uint64_t size_;
  uint64_t taken_ = 0;
};

// The options of a call, and the memory that they point into.
// `which`: what the for_each of a Declaration takes before its reader.
template <typename Declaration, size_t kMaxArrays, size_t kMaxTexts>
class CallOptions {
 public:
  template <typename... Which>
  explicit CallOptions(Stack& stack, Which... which) {
    Reader reader{*this, stack};
    options_.for_each(which..., reader);
  }
  CallOptions(const CallOptions&) = delete;
  CallOptions& operator=(const CallOptions&) = delete;

  const Declaration& describe(const Call& call) {
    for (size_t i = 0; i < array_count_; ++i) {
      OptionArray& one = arrays_[i];
      if (!one.tensor) continue;
      one.array = call.describe(one.name, *one.tensor);
      *one.option = &one.array;
    }
    return options_;
  }

  // Without its arrays, which `describe` adds.
  const Declaration& options() const { return options_; }

 private:
  struct OptionArray {
    const char* name = nullptr;
    OptionalTensor tensor;
    const Array** option = nullptr;
    Array array;
  };

  struct Reader {
    CallOptions& options;
    Stack& stack;

    void array(const char* name, const Array*& value) { keep(name, stack.take<Tensor>(), value); }
    void output(const char* name, const Array*& value) { array(name, value); }
    void optional_output(const char* name, const Array*& value) { optional_array(name, value); }
    void optional_array(const char* name, const Array*& value) {
      keep(name, stack.take<OptionalTensor>(), value);
    }
    // Of consecutive positions the package makes a tensor.
    void positions(const char* name, const Array*& value, int64_t& /*first*/) {
      optional_array(name, value);
    }
    void text(const char* /*name*/, std::string_view& value) {
      std::string& kept = options.texts_[options.text_count_++];
      kept = stack.take<std::string>();
      value = kept;
    }
    void pairing(const char* name, std::string_view& value) { text(name, value); }
    void integer(const char* /*name*/, int64_t& value) { value = stack.take<int64_t>(); }
    void number(const char* /*name*/, double& value) { value = stack.take<double>(); }
    void boolean(const char* /*name*/, bool& value) { value = stack.take<bool>(); }

    void keep(const char* name, OptionalTensor tensor, const Array*& value) {
      OptionArray& one = options.arrays_[options.array_count_++];
      one.name = name;
      one.tensor = std::move(tensor);
      one.option = &value;
    }
  };

  Declaration options_;
  OptionArray arrays_[kMaxArrays];
  std::string texts_[kMaxTexts];
  size_t array_count_ = 0, text_count_ = 0;
};

// Writes the options down as in a schema.
class SchemaWriter {
 public:
  explicit SchemaWriter(bool with_defaults) : with_defaults_(with_defaults) {}

  void array(const char* name, const Array* /*value*/) { add("Tensor", name); }
  void output(const char* name, const Array* /*value*/) {
    add(("Tensor(" + std::string(name) + "!)").c_str(), name);
  }
  void optional_output(const char* name, const Array* /*value*/) {
    add(("Tensor(" + std::string(name) + "!)?").c_str(), name);
  }
  // None is the default where arguments before it have one.
  void optional_array(const char* name, const Array* /*value*/) {
    has_defaults_ ? add("Tensor?", name, "None") : add("Tensor?", name);
  }
  void positions(const char* name, const Array* value, int64_t /*first*/) {
    optional_array(name, value);
  }
  void text(const char* name, std::string_view value) {
    add("str", name, "\"" + std::string(value) + "\"");
  }
  void pairing(const char* name, std::string_view value) { text(name, value); }
  void integer(const char* name, int64_t value) { add("int", name, std::to_string(value)); }
  void number(const char* name, double value) {
    std::ostringstream number;
    number.imbue(std::locale::classic());
    number.precision(std::numeric_limits<double>::max_digits10);
    number << value;
    add("float", name, number.str());
  }
  void boolean(const char* name, bool value) { add("bool", name, value ? "True" : "False"); }

  const std::string& written() const { return text_; }

 private:
  void add(const char* type, const char* name) {
    if (!text_.empty()) text_ += ", ";
    text_ += std::string(type) + " " + name;
  }
  void add(const char* type, const char* name, const std::string& value) {
    add(type, name);
    if (!with_defaults_) return;
    text_ += "=" + value;
    has_defaults_ = true;
  }

  const bool with_defaults_;
  bool has_defaults_ = false;
  std::string text_;
};

// The options of a Declaration as a schema has them; `which` as in CallOptions.
template <typename Declaration, typename... Which>
std::string schema_of(bool with_defaults, Which... which) {
  Declaration defaults;
  SchemaWriter writer(with_defaults);
  defaults.for_each(which..., writer);
  return writer.written();
}

}  // namespace posenc::operators
