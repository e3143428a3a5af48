// A value, or the Error that kept it from being made. For control paths: an Error carries a
// sentence, so making one may allocate. Data paths return Status or the bool of try_*().
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "kvrail/base/assert.h"
#include "kvrail/base/status.h"

namespace kvrail {

/// `message` is one line for a person: what failed, the limit or value in question, the remedy.
struct Error {
  Status status{Code::internal};
  std::string message;
};

/// Holds a T or an Error. Both convert implicitly, so `return value;` and `return Error{...};` both
/// work, and so does `return Status{...}` for a failure that needs no sentence. Works with
/// move-only types.
template <class T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, Error> &&
                    !std::is_same_v<std::remove_cv_t<T>, Status>,
                "a Result of a reference, an Error or a Status would be ambiguous");

 public:
  Result(T value) noexcept(std::is_nothrow_move_constructible_v<T>)
      : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) noexcept : state_(std::in_place_index<1>, std::move(error)) {
    KVRAIL_ASSERT_MSG(!std::get<1>(state_).status.ok(), "an Error needs a failing Status");
  }
  Result(Status status) noexcept : Result(Error{status, {}}) {}

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  [[nodiscard]] T& value() & noexcept { return *checked(); }
  [[nodiscard]] const T& value() const& noexcept { return *checked(); }
  [[nodiscard]] T&& value() && noexcept { return std::move(*checked()); }

  [[nodiscard]] T& operator*() & noexcept { return *checked(); }
  [[nodiscard]] const T& operator*() const& noexcept { return *checked(); }
  [[nodiscard]] T&& operator*() && noexcept { return std::move(*checked()); }
  [[nodiscard]] T* operator->() noexcept { return checked(); }
  [[nodiscard]] const T* operator->() const noexcept { return checked(); }

  [[nodiscard]] const Error& error() const& noexcept { return *checked_error(); }
  /// Moves the error out, to return it from a function with another T: `return
  /// std::move(r).error();`.
  [[nodiscard]] Error&& error() && noexcept {
    KVRAIL_ASSERT_MSG(!ok(), "error() of a Result that holds a value");
    return std::move(*std::get_if<1>(&state_));
  }

  /// The failing Status, or ok.
  [[nodiscard]] Status status() const noexcept {
    return ok() ? Status::ok_status() : std::get_if<1>(&state_)->status;
  }

 private:
  T* checked() noexcept {
    KVRAIL_ASSERT_MSG(ok(), "value() of a failed Result");
    return std::get_if<0>(&state_);
  }
  const T* checked() const noexcept {
    KVRAIL_ASSERT_MSG(ok(), "value() of a failed Result");
    return std::get_if<0>(&state_);
  }
  const Error* checked_error() const noexcept {
    KVRAIL_ASSERT_MSG(!ok(), "error() of a Result that holds a value");
    return std::get_if<1>(&state_);
  }

  std::variant<T, Error> state_;
};

/// Success without a value, or an Error. `return {};` is success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() noexcept = default;
  Result(Error error) noexcept : error_(std::move(error)) {
    KVRAIL_ASSERT_MSG(!error_->status.ok(), "an Error needs a failing Status");
  }
  /// Unlike Result<T>, an ok Status is welcome here: it is success.
  Result(Status status) noexcept {
    if (!status.ok()) {
      error_.emplace(Error{status, {}});
    }
  }

  [[nodiscard]] bool ok() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const& noexcept {
    KVRAIL_ASSERT_MSG(!ok(), "error() of a Result that succeeded");
    return *error_;
  }
  [[nodiscard]] Error&& error() && noexcept {
    KVRAIL_ASSERT_MSG(!ok(), "error() of a Result that succeeded");
    return std::move(*error_);
  }
  [[nodiscard]] Status status() const noexcept {
    return ok() ? Status::ok_status() : error_->status;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace kvrail
