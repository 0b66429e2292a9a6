/**
 * @file cachalot/settings.h
 * The list of all settings, the same as in docs/configuration.md. `cachalot_options.config` and
 * cachalot_configure take them.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_SETTINGS_H
#define CACHALOT_SETTINGS_H

#ifdef __cplusplus
extern "C" {
#endif

/** A setting; see cachalot_visit_settings. */
typedef struct cachalot_setting {
  size_t struct_size;        /**< The size in the library's version. */
  const char *key;           /**< The name, as in "key:value". */
  const char *policies;      /**< The policies that use the setting, separated by blanks. */
  const char *values;        /**< The values that the setting takes, in a few words. */
  const char *default_value; /**< The value if the program sets none, or a few words about it. */
  const char *example;       /**< A value that the setting takes. */
  const char *effect;        /**< What the setting does, in a few sentences. */
} cachalot_setting;

/** Receives a setting. The structure is valid until the callback returns. Returns 0 to continue. */
typedef int (*cachalot_setting_visitor)(void *userdata, const cachalot_setting *setting);

/** Calls `visit` with every setting, in the order of the keys. Needs no allocator.
 *   - Errors: NULL, STOPPED, PANIC. */
CACHALOT_API cachalot_status cachalot_visit_settings(cachalot_setting_visitor visit, void *userdata);

#ifdef __cplusplus
}
#endif

#endif
