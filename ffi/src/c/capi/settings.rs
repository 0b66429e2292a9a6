//! The list of all settings, at run time.

use crate::POLICIES;
use crate::c::abi::{cachalot_setting, cachalot_setting_visitor, cachalot_status};
use crate::c::boundary;
use crate::c::status::{CACHALOT_ERROR_STOPPED, Status};
use cachalot_core::config::{SettingDefault, SettingReference};
use core::ffi::c_void;
use std::ffi::CString;

/// The texts of a setting for C: key, policies, values, default, example and effect.
fn texts(setting: &SettingReference) -> [CString; 6] {
    let policies: Vec<_> = setting.policies(POLICIES).collect();
    let values = setting.accepted(POLICIES).map_or(String::new(), |accepted| accepted.to_string());
    let (SettingDefault::Value(default) | SettingDefault::Unset(default)) = setting.default;
    let texts = [setting.key, &policies.join(" "), &values, default, setting.example, setting.effect];
    // No text has a NUL.
    texts.map(|text| CString::new(text).unwrap_or_default())
}

/// Passes every setting to a callback.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_visit_settings(
    visit: cachalot_setting_visitor,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::without_instance(|| {
        let visit = visit.ok_or_else(|| Status::null("the callback"))?;
        for setting in crate::settings() {
            let texts = texts(&setting);
            let [key, policies, values, default_value, example, effect] = texts.each_ref().map(|text| text.as_ptr());
            let struct_size = size_of::<cachalot_setting>();
            let setting = cachalot_setting { struct_size, key, policies, values, default_value, example, effect };
            // SAFETY: guaranteed by the caller; the setting and its texts outlive the call.
            if unsafe { visit(userdata, &raw const setting) } != 0 {
                return Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"));
            }
        }
        Ok(())
    })
}
