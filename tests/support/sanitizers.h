// KVRAIL_TEST_SANITIZED is 1 under the address or thread sanitizer, which turn some system calls
// (mlock) into nothing. gcc says so by a macro, clang by a feature.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVRAIL_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVRAIL_TEST_SANITIZED 1
#endif
#endif
#if !defined(KVRAIL_TEST_SANITIZED)
#define KVRAIL_TEST_SANITIZED 0
#endif
